"""Anything that answers messages is a worker: here, a calculator beside a model that is scripted.

A worker is a class with `info` and `ask`. For a plain function, `FromFunction` is shorter.
"""

import ast
import asyncio
import operator

from dirigent import (
    Conductor,
    Fixed,
    FromFunction,
    Plan,
    Pool,
    Reply,
    Request,
    Scripted,
    Step,
    WorkerError,
    WorkerInfo,
)

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


class Calculator:
    info = WorkerInfo("calculator", about="exact arithmetic on one expression", subtask_only=True)

    async def ask(self, request: Request, *, observe: object = None) -> Reply:
        expression = request.messages[-1].text.splitlines()[-1]
        try:
            return Reply(str(value_of(ast.parse(expression, mode="eval").body)))
        except (SyntaxError, TypeError, KeyError) as error:
            raise WorkerError(f"calculator cannot evaluate {expression!r}", fault="request") from error


def value_of(node: ast.expr) -> float:
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](value_of(node.left), value_of(node.right))
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    raise TypeError(ast.dump(node))


async def main() -> None:
    shout = FromFunction(lambda request: request.messages[-1].text.splitlines()[-1].upper(), name="shout")
    pool = Pool([Calculator(), Scripted("It comes to 391.", name="writer"), shout])
    plan = Plan((Step("calculator", "17 * 23"), Step("writer", "Say it in a sentence.", (0,))))
    trace = await Conductor(Fixed(plan), pool).run("What is 17 times 23?")
    print(trace.steps[0].reply.text, "->", trace.answer)


asyncio.run(main())
