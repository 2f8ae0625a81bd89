"""The coding task behind ``bench.tasks.coding``: sampling, reference answers, checks, recall."""
