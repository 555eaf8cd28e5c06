"""Learning: everything that is fitted from recorded answers or from rewards.

`grpo` trains a conductor with reinforcement learning; its model is a `decoder`, its plans come from a `sampler`, and
its questions and rewards from a task (`table_plans` values plans on recorded answers). Needs the extra `learn`.
"""
