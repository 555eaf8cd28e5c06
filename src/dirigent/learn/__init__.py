"""Learning: everything that is fitted from recorded answers or from rewards.

`grpo` trains a conductor with reinforcement learning; its model is a `decoder`, its plans come from a `sampler`, and
its questions and rewards from a task (`table_plans` values plans on recorded answers). `values` makes what that task
reads: it grades a `roles_table` and fits a `selector`. Needs the extra `learn`; a `selector` needs numpy only.
"""
