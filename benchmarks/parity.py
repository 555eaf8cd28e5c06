"""Do torch and llama.cpp say the same? Greedy tokens on the same weights: adapter off, on, and merged.

    python benchmarks/parity.py [--prompts 200] [--adapter FOLDER] [--weights FILE.gguf] [--precision f16|f32] [--json]

Both sides get the same numbers: the base is de-quantised in torch, rounded to the precision, and written as GGUF; the
adapter is exported as it would ship; the merged model is merged in torch and written like the base. Prompts are the
gym's, as workers and conductor are asked, and go through the chat template of each side, which is compared first.
Without --adapter a random one of rank 16 on all linear layers is made, large enough to change most answers.

Torch computes in float32. llama.cpp rounds what it multiplies with float16 weights, and its memory of the prompt, to
float16, so two tokens that are as good as tied may fall the other way. Where a reply differs, the last column says how
far apart torch finds the two tokens at the first difference: a real fault shows as a large number. With
`--precision f32` only the memory of the prompt is rounded. Needs the extras `train` and `local`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from dirigent.limits import Limits
from dirigent.messages import Message
from dirigent.prompt import trained_planner_messages
from dirigent.tasks.gym import ROSTER, cards_for, draw_pool, examples, generate
from dirigent.tasks.gym.judging import messages_of
from dirigent.train.base import encode, load_base, prompt_texts
from dirigent.train.export import Precision, default_base, export_adapter, export_base, read_base
from dirigent.train.sft import SftSettings, with_adapter
from dirigent.workers.local import LocalModel

PLANNER_SHARE = 10
"""One prompt in this many is a conductor's, which is ten times as long as a specialist's."""

Conversation = tuple[Message, ...]
Tokens = list[int]
Say = Callable[[str], None]


class Difference(msgspec.Struct, frozen=True):
    """Where the first of two replies that differ parts from the other."""

    prompt: int
    position: int
    torch: str
    llama: str
    gap: float
    """By how much torch prefers its own token, in logits."""


class Agreement(msgspec.Struct, frozen=True):
    """One way of running the model, on all prompts."""

    mode: str
    same: int
    of: int
    differences: tuple[Difference, ...] = ()

    @property
    def widest_gap(self) -> float:
        return max((d.gap for d in self.differences), default=0.0)


class Templates(msgspec.Struct, frozen=True):
    """How many prompts both sides write, and read, alike."""

    same_text: int
    same_ids: int
    of: int


def main() -> None:
    args = _arguments()
    say = _silent if args.json else _progress
    say("loading the base in torch…")
    weights = args.weights or default_base()
    model, tokenizer = load_base(weights, device="cpu", dtype=torch.float32)
    prompts = gym_prompts(args.prompts, seed=args.seed)
    with tempfile.TemporaryDirectory() as folder:
        files = prepare(model, Path(folder), like=weights, adapter=args.adapter, precision=args.precision, say=say)
        templates, agreements, changed = asyncio.run(
            compare(files, tokenizer, prompts, max_tokens=args.tokens, threads=args.threads, say=say)
        )
    if not args.json:
        _print_table(templates, agreements, changed, args)
    rows = {a.mode: {"same": a.same, "of": a.of, "widest_gap": round(a.widest_gap, 4)} for a in agreements}
    settings = {"precision": args.precision, "adapter": args.adapter.name if args.adapter else "random r16"}
    print(json.dumps(settings | {"template": msgspec.to_builtins(templates), "changed_by_adapter": changed} | rows))


def gym_prompts(count: int, *, seed: int) -> list[Conversation]:
    """Specialists' subtasks in turn, and now and then a question for the conductor over a pool of six."""
    rng = random.Random(seed)
    drawn = {s.name: iter(examples(s, count, seed=seed)) for s in ROSTER}
    questions = iter(generate("dev", count, seed=seed))
    prompts: list[Conversation] = []
    for index in range(count):
        if index % PLANNER_SHARE == PLANNER_SHARE - 1:
            task = next(questions)
            cards = cards_for(draw_pool(task, rng, size=6), rng)
            prompts.append(trained_planner_messages((Message("user", task.question),), cards, limits=Limits()))
        else:
            example = next(drawn[ROSTER[index % len(ROSTER)].name])
            prompts.append(messages_of(example, f"{rng.getrandbits(64)}"))
    return prompts


class Files(msgspec.Struct, frozen=True):
    """The same model twice: in torch, and as the files that llama.cpp runs."""

    adapted: Any
    """The base with its adapter, a PEFT model."""
    merged: Any
    base_gguf: Path
    adapter_gguf: Path
    merged_gguf: Path


def prepare(model: Any, folder: Path, *, like: Path, adapter: Path | None, precision: Precision, say: Say) -> Files:
    """Write base, adapter and merged model as GGUF, and keep in torch exactly what was written."""
    from peft import PeftModel

    say(f"writing the {precision} base, the adapter and the merged model…")
    base_gguf = export_base(_rounded(model, precision), folder / "base.gguf", like=like, precision=precision)
    peft_folder = adapter or random_adapter(model, folder / "random", rank=16, size=0.05, seed=0)
    adapter_gguf = folder / "adapter.gguf"
    export_adapter(peft_folder, adapter_gguf, base=read_base(base_gguf))
    merged = PeftModel.from_pretrained(_copied(model), peft_folder).merge_and_unload()
    merged_gguf = export_base(_rounded(merged, precision), folder / "merged.gguf", like=like, precision=precision)
    adapted = PeftModel.from_pretrained(model, peft_folder).eval()
    return Files(adapted, merged.eval(), base_gguf, adapter_gguf, merged_gguf)


def random_adapter(model: Any, folder: Path, *, rank: int, size: float, seed: int) -> Path:
    """A PEFT adapter on all linear layers that nobody trained; its numbers are exact in float16."""
    torch.manual_seed(seed)
    adapted = with_adapter(_copied(model), "default", SftSettings(rank=rank, alpha=2 * rank))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, size)
            if "lora_" in name:
                parameter.copy_(parameter.half().float())
    # False: PEFT would look for the base's own config file, and a GGUF file has none.
    adapted.save_pretrained(folder, save_embedding_layers=False)
    return folder


def _copied(model: Any) -> Any:
    """PEFT changes the model it is given."""
    twin = type(model)(model.config)
    twin.load_state_dict(model.state_dict())
    return twin.eval()


def _rounded(model: Any, precision: Precision) -> Any:
    """The model in float32 with the numbers that the file will hold. Norms are not rounded in either."""
    if precision == "f16":
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter.copy_(parameter.half().float())
    return model


async def compare(
    files: Files, tokenizer: Any, prompts: Sequence[Conversation], *, max_tokens: int, threads: int | None, say: Say
) -> tuple[Templates, list[Agreement], int]:
    """The three modes, and in how many prompts the adapter changes what is said."""
    rows = encode(tokenizer, prompt_texts(tokenizer, prompts))
    by_torch, agreements = {}, []
    async with (
        LocalModel(files.base_gguf, adapters={"it": files.adapter_gguf}, slots=1, threads=threads) as plain,
        LocalModel(files.merged_gguf, slots=1, threads=threads) as merged,
    ):
        templates = await compare_templates(plain, tokenizer, prompts)
        for mode, model, adapter in (("off", plain, None), ("on", plain, "it"), ("merged", merged, None)):
            say(f"adapter {mode}: torch…")
            ours = torch_greedy(_runner(files, mode), rows, max_tokens=max_tokens, tokenizer=tokenizer)
            say(f"adapter {mode}: llama.cpp…")
            theirs = await llama_greedy(model, prompts, adapter=adapter, max_tokens=max_tokens, tokenizer=tokenizer)
            by_torch[mode] = ours
            agreements.append(agreement(mode, files, tokenizer, rows, ours, theirs))
            say(f"adapter {mode}: {agreements[-1].same} of {len(rows)} the same")
    changed = sum(on != off for on, off in zip(by_torch["on"], by_torch["off"], strict=True))
    return templates, agreements, changed


def _runner(files: Files, mode: str) -> Any:
    if mode == "merged":
        return files.merged
    if mode == "on":
        files.adapted.base_model.enable_adapter_layers()
    else:
        files.adapted.base_model.disable_adapter_layers()
    return files.adapted


@torch.no_grad()
def torch_greedy(
    model: Any, rows: Sequence[Tokens], *, max_tokens: int, tokenizer: Any, batch: int = 16
) -> list[Tokens]:
    """Each prompt's greedy continuation, end mark included. Prompts of like length share a batch."""
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    found: dict[int, Tokens] = {}
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        longest = max(len(rows[i]) for i in chosen)
        gaps = [longest - len(rows[i]) for i in chosen]
        ids = torch.tensor([[pad] * gap + rows[i] for i, gap in zip(chosen, gaps, strict=True)])
        mask = torch.tensor([[0] * gap + [1] * (longest - gap) for gap in gaps])
        out = model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=max_tokens, do_sample=False, pad_token_id=pad
        )
        for i, row in zip(chosen, out[:, longest:].tolist(), strict=True):
            found[i] = row[: row.index(end) + 1] if end in row else row
    return [found[i] for i in range(len(rows))]


async def llama_greedy(
    model: LocalModel, prompts: Sequence[Conversation], *, adapter: str | None, max_tokens: int, tokenizer: Any
) -> list[Tokens]:
    """The same from llama.cpp, by its own template. Its chat endpoint would do, but for not saying all ids."""
    number, end = model.adapter_id(adapter), tokenizer.eos_token_id
    found = []
    for prompt in prompts:
        body: dict[str, Any] = {
            "prompt": (await _post(model, "/apply-template", {"messages": _turns(prompt)}))["prompt"],
            "n_predict": max_tokens,
            "temperature": 0,
            "return_tokens": True,
            "lora": [] if number is None else [{"id": number, "scale": 1.0}],
        }
        reply = await _post(model, "/completion", body)
        ids = reply["tokens"]
        found.append([*ids, end] if reply["stop_type"] == "eos" and ids[-1:] != [end] else ids)
    return found


async def compare_templates(model: LocalModel, tokenizer: Any, prompts: Sequence[Conversation]) -> Templates:
    """Both chat templates on every prompt: the text each makes of it, and the ids each reads in that text."""
    texts = prompt_texts(tokenizer, prompts)
    rows = encode(tokenizer, texts)
    same_text = same_ids = 0
    for prompt, text, row in zip(prompts, texts, rows, strict=True):
        written = (await _post(model, "/apply-template", {"messages": _turns(prompt)}))["prompt"]
        asked = {"content": written, "add_special": True, "parse_special": True}
        same_text += written == text
        same_ids += (await _post(model, "/tokenize", asked))["tokens"] == row
    return Templates(same_text, same_ids, len(prompts))


def _turns(prompt: Conversation) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.text} for message in prompt]


async def _post(model: LocalModel, path: str, body: dict[str, Any]) -> Any:
    child = await model.running()
    headers = {"Authorization": f"Bearer {child.key.reveal()}", "Connection": "close"}
    url = f"http://127.0.0.1:{child.port}{path}"
    async with model.client.session().post(url, json=body, headers=headers) as response:
        response.raise_for_status()
        return await response.json()


def agreement(
    mode: str, files: Files, tokenizer: Any, rows: Sequence[Tokens], ours: Sequence[Tokens], theirs: Sequence[Tokens]
) -> Agreement:
    differences = []
    for index, (left, right) in enumerate(zip(ours, theirs, strict=True)):
        if left == right:
            continue
        position = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
        if position is None:  # cannot be while both end with an end mark or at the same length
            raise RuntimeError(f"prompt {index}: {left} and {right} differ in length only")
        gap = _gap(_runner(files, mode), rows[index] + left[:position], left[position], right[position])
        words = (tokenizer.decode([left[position]]), tokenizer.decode([right[position]]))
        differences.append(Difference(index, position, *words, gap))
    return Agreement(mode, len(rows) - len(differences), len(rows), tuple(differences))


@torch.no_grad()
def _gap(model: Any, ids: Tokens, preferred: int, other: int) -> float:
    logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
    return float(logits[preferred] - logits[other])


def _print_table(templates: Templates, agreements: Sequence[Agreement], changed: int, args: Any) -> None:
    of = templates.of
    print(f"{of} prompts, {args.tokens} tokens each, {args.precision} base")
    print(f"chat template  {templates.same_text} of {of} texts and {templates.same_ids} of {of} rows of ids agree")
    print(f"the adapter changes {changed} of {of} replies\n")
    print("mode     same tokens   where they part (torch / llama.cpp, how far apart torch finds the two)")
    for row in agreements:
        first = [
            f"prompt {d.prompt} token {d.position}: {d.torch!r} / {d.llama!r}, {d.gap:.4f}" for d in row.differences
        ]
        print(f"{row.mode:<7}  {row.same:>4} of {row.of:<4}  {'; '.join(first[:4]) or '-'}")


def _progress(what: str) -> None:
    print(f"▸ {what}", file=sys.stderr, flush=True)


def _silent(what: str) -> None:
    pass


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=24, help="most tokens of a reply")
    parser.add_argument("--adapter", type=Path, help="a PEFT adapter folder (default: a random one)")
    parser.add_argument("--weights", type=Path, help="GGUF of the base (default: the fetched smollm2-135m)")
    parser.add_argument("--precision", choices=("f16", "f32"), default="f16")
    parser.add_argument("--threads", type=int, help="of llama.cpp (default: all cores)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    return parser.parse_args()


if __name__ == "__main__":
    main()
