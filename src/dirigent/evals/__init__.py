"""Evaluation: does conducting pay, on these questions, over this pool?

Read in this order: `evaluate` (planners over a field, one report), `field` and its kinds `live` and `recorded` (the gym
brings its own), `entries` (every entry answers every question), `record` (the stored outcomes), `metrics` and `stats`
(the figures), `report`, `tables` and `page` (tables and sentences). `planners` fits the planners
that take part, `costing` chooses how many samples a vote may have, `recipe` is a file that names it all.
"""

from dirigent.evals.entries import Entry, ask_entries
from dirigent.evals.evaluate import answers_of, evaluate, report_of
from dirigent.evals.field import Field
from dirigent.evals.metrics import Figures, figures, oracle
from dirigent.evals.page import as_html
from dirigent.evals.record import Outcome, Record, outcome_of, read_outcomes
from dirigent.evals.report import Facts, Report, as_json, as_markdown, as_table, make_report
from dirigent.evals.stats import Difference, paired_difference, wilson

__all__ = [
    "Difference",
    "Entry",
    "Facts",
    "Field",
    "Figures",
    "Outcome",
    "Record",
    "Report",
    "answers_of",
    "as_html",
    "as_json",
    "as_markdown",
    "as_table",
    "ask_entries",
    "evaluate",
    "figures",
    "make_report",
    "oracle",
    "outcome_of",
    "paired_difference",
    "read_outcomes",
    "report_of",
    "wilson",
]
