"""Evaluation: does conducting pay, on these questions, over this pool?

Read in this order: `evaluate` (every entry answers every question), `outcome` and `record` (what is kept of it),
`figures`, `capacity` and `stats` (what it comes to), `report`, `verdict`, `notes`, `origins` and `page` (how it is
told), `beside` (a row of an earlier report). `planners` and `baselines` have everybody who can take part. `live` and
`questions` bring public benchmarks over a configured pool, `recorded` and `folds` models' recorded answers, `gym_pools`
and `probes` the gym's questions, `gym`, `ceiling` and `gym_workers` who answers them; `recipe` is a file that names it
all. `curves` draws a training run.
"""

from dirigent.evals.evaluate import Entry, evaluate
from dirigent.evals.metrics import Figures, figures, oracle
from dirigent.evals.outcome import Outcome, outcome_of
from dirigent.evals.page import as_html
from dirigent.evals.record import Record, read_outcomes
from dirigent.evals.report import Facts, Report, as_json, as_markdown, as_table, make_report
from dirigent.evals.stats import Difference, paired_difference, wilson

__all__ = [
    "Difference",
    "Entry",
    "Facts",
    "Figures",
    "Outcome",
    "Record",
    "Report",
    "as_html",
    "as_json",
    "as_markdown",
    "as_table",
    "evaluate",
    "figures",
    "make_report",
    "oracle",
    "outcome_of",
    "paired_difference",
    "read_outcomes",
    "wilson",
]
