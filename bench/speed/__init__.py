"""What sessions cost: time per token along a session, together, against resending and against
transformers with everything kept. Every ratio is taken within one run, in alternation.
"""
