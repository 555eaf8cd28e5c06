"""Dirigent: one endpoint over all your language models, conducted by a small trained one."""
