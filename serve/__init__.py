"""HTTP, Ray Serve and the command line around ``engine``."""
