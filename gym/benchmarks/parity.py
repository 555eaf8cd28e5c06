"""Do torch and llama.cpp give the same replies? Greedy tokens on the same weights: adapter off, on, and merged.

    python gym/benchmarks/parity.py [--prompts 200] [--adapter FOLDER] [--weights FILE.gguf] [--precision f16] [--json]
    python gym/benchmarks/parity.py --adapter FOLDER --precision f16 f32 f32-all --out docs/results/parity.json

Both sides get the same numbers: the base is de-quantised in torch, rounded to float16, and written as GGUF; the adapter
is exported as it would ship; the merged model is merged in torch and written like the base. Prompts are those of the
gym's workers and conductor, and go through the chat template of each side, which is compared first. Without --adapter a
random one of rank 16 on all linear layers is made, large enough to change most answers.

Torch computes in float32. llama.cpp rounds the numbers that it multiplies with float16 weights, and its memory of the
prompt, to float16, so two tokens that are nearly tied may fall the other way. If a reply differs, the last column shows
how far apart torch finds the two tokens at the first difference: a real fault shows as a large number. Two controls
have the very same numbers in files of float32: with `--precision f32` llama.cpp rounds only within attention, with
`f32-all` nothing (flash attention is off there: it would round that memory when it reads it).

`--out` writes JSON (figures, every reply that differs, commit, hashes) and the page beside it. Each precision is a part
of its own. A part that is not measured this time is kept with its commit, if it has the same prompts and files.
`--page` writes the page anew from an existing JSON. Needs the extras `train` and `local`.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args
from unittest.mock import patch
from urllib.parse import urlsplit

import msgspec
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gym.benchmarks.parity_page import (
    Agreement,
    Difference,
    Part,
    Parts,
    Precision,
    Subject,
    Templates,
    is_planners,
    read,
    write,
)

from dirigent.errors import ConfigError, DirigentError
from dirigent.evals.record import source_commit
from dirigent.learn.base import END_OF_TURN
from dirigent.learn.decoder import LINEAR
from dirigent.learn.export import default_base, export_adapter, export_base, read_base
from dirigent.limits import Limits
from dirigent.messages import Message
from dirigent.plan.prompt import trained_planner_messages
from dirigent.workers import local, local_server
from dirigent.workers.adapters import packaged
from dirigent.workers.local import LocalModel
from dirigent.workers.local_server import ServerSettings
from dirigent.workers.secret import Secret
from dirigent_gym.questions import ROSTER, cards_for, draw_pool, examples, generate
from dirigent_gym.questions.judging import messages_of
from dirigent_gym.weights import FOLDER

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "docs" / "results" / "parity.json"
GGML_F32 = 0
NO_FLASH_ATTENTION = 0
"""With flash attention, llama.cpp casts a memory in float32 to float16 before it reads it."""

Conversation = tuple[Message, ...]
Tokens = list[int]
Say = Callable[[str], None]


def main() -> None:
    args = _arguments()
    try:
        if args.out and args.out.suffix != ".json":
            raise ConfigError(f"--out {args.out}: name a .json file; the page is written beside it")
        if args.page:
            write(read(args.out or PUBLISHED), args.out or PUBLISHED)
            return
        for precision in dict.fromkeys(args.precision):
            part = measure(args, precision, say=_silent if args.json else _progress)
            if not args.json:
                _print_table(part, precision)
            print(json.dumps(_in_short(part, precision)))
            if args.out:
                write(with_part(_before(args.out), precision, part), args.out)
    except DirigentError as error:
        sys.exit(f"error: {error}")


def measure(args: argparse.Namespace, precision: Precision, *, say: Say) -> Part:
    began = time.monotonic()
    say("loading the base in torch…")
    weights = args.weights or default_base()
    model, tokenizer = load_model(weights)
    prompts = gym_prompts(args.prompts, seed=args.seed)
    with tempfile.TemporaryDirectory() as folder:
        files = prepare(model, Path(folder), like=weights, adapter=args.adapter, precision=precision, say=say)
        exported = _sha256(files.exported)
        with patch.object(local, "spawn", _spawn_wide) if precision == "f32-all" else nullcontext():
            templates, agreements, changed = asyncio.run(
                compare(files, tokenizer, prompts, max_tokens=args.tokens, threads=args.threads, say=say)
            )
    shipped = next((name for name, file in packaged(FOLDER).items() if _sha256(file) == exported), "")
    subject = Subject(
        adapter=shipped or (args.adapter.name if args.adapter else "random r16"),
        adapter_sha256=exported,
        ships=bool(shipped),
        base=weights.name,
        base_sha256=_sha256(weights),
        prompts=len(prompts),
        planner_prompts=sum(map(is_planners, range(len(prompts)))),
        tokens=args.tokens,
        seed=args.seed,
    )
    return Part(
        subject,
        templates,
        tuple(agreements),
        changed,
        commit=asyncio.run(source_commit()),
        date=datetime.now(UTC).date().isoformat(),
        seconds=round(time.monotonic() - began, 1),
        cores=os.cpu_count() or 0,
        versions={name: version(name) for name in ("torch", "transformers", "peft", "xllamacpp")},
    )


def load_model(gguf: Path) -> tuple[Any, Any]:
    """The model of a GGUF file in transformers, in float32, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if END_OF_TURN in tokenizer.get_vocab():  # not every release of transformers reads it from the file
        tokenizer.eos_token = END_OF_TURN
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    model.config.__dict__.pop("quantization_config", None)
    return _copied(model), tokenizer  # a copy has no record of the file's quantisation, which saving would refuse


def prompt_texts(tokenizer: Any, prompts: Sequence[Conversation]) -> list[str]:
    """Each conversation as the model reads it, up to the start of its reply."""
    return [tokenizer.apply_chat_template(_turns(p), tokenize=False, add_generation_prompt=True) for p in prompts]


def encode(tokenizer: Any, texts: Sequence[str]) -> list[Tokens]:
    """The token ids of each text, without additional special tokens: the template has them all."""
    ids: list[Tokens] = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    return ids


def with_part(before: Parts, precision: Precision, part: Part) -> Parts:
    """The parts of the same subject with this one added; parts of another subject are dropped."""
    kept = {name: found for name, found in before.items() if found.subject == part.subject}
    return dict(sorted((kept | {precision: part}).items()))


def _before(out: Path) -> Parts:
    return read(out) if out.exists() else {}


def _in_short(part: Part, precision: Precision) -> dict[str, Any]:
    rows = {a.mode: {"same": a.same, "of": a.of, "widest_gap": round(a.widest_gap, 4)} for a in part.agreements}
    settings = {"precision": precision, "adapter": part.subject.adapter}
    return settings | {"template": msgspec.to_builtins(part.templates), "changed_by_adapter": part.changed} | rows


def gym_prompts(count: int, *, seed: int) -> list[Conversation]:
    """Specialists' subtasks in turn, and at times a question for the conductor over a pool of six."""
    rng = random.Random(seed)
    drawn = {s.name: iter(examples(s, count, seed=seed)) for s in ROSTER}
    questions = iter(generate("dev", count, seed=seed))
    prompts: list[Conversation] = []
    for index in range(count):
        if is_planners(index):
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
    exported: Path
    """The adapter as it would ship. The adapter that llama.cpp runs may hold the same numbers in float32."""


def prepare(model: Any, folder: Path, *, like: Path, adapter: Path | None, precision: Precision, say: Say) -> Files:
    """Write base, adapter and merged model as GGUF, and keep in torch exactly what was written."""
    from peft import PeftModel

    stored: Literal["f16", "f32"] = "f16" if precision == "f16" else "f32"
    say(f"writing the {stored} base, the adapter and the merged model…")
    base_gguf = export_base(_rounded(model), folder / "base.gguf", like=like, precision=stored)
    peft_folder = adapter or random_adapter(model, folder / "random", rank=16, size=0.05, seed=0)
    exported = folder / "adapter.gguf"
    export_adapter(peft_folder, exported, base=read_base(base_gguf))
    adapter_gguf = exported if stored == "f16" else _widened(exported, folder / "adapter-f32.gguf")
    merged = PeftModel.from_pretrained(_copied(model), peft_folder).merge_and_unload()
    merged_gguf = export_base(_rounded(merged), folder / "merged.gguf", like=like, precision=stored)
    adapted = PeftModel.from_pretrained(model, peft_folder).eval()
    return Files(adapted, merged.eval(), base_gguf, adapter_gguf, merged_gguf, exported)


def random_adapter(model: Any, folder: Path, *, rank: int, size: float, seed: int) -> Path:
    """An untrained PEFT adapter on all linear layers; float16 holds its numbers exactly."""
    torch.manual_seed(seed)
    from peft import LoraConfig, get_peft_model

    targets = [part.rpartition(".")[2] for part in LINEAR]
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, task_type="CAUSAL_LM")
    adapted = get_peft_model(_copied(model), config)
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


def _rounded(model: Any) -> Any:
    """The model in float32 with numbers that a float16 file holds exactly. Norms are not rounded."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.copy_(parameter.half().float())
    return model


def _widened(adapter: Path, out: Path) -> Path:
    """The same adapter in float32: llama.cpp rounds the numbers that it multiplies with float16 matrices."""
    from gguf import GGUFReader, GGUFWriter

    reader = GGUFReader(adapter)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    writer = GGUFWriter(out, fields.pop("general.architecture").contents())
    for name, field in fields.items():
        writer.add_key_value(name, field.contents(), field.types[0])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data.astype("float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


async def compare(
    files: Files, tokenizer: Any, prompts: Sequence[Conversation], *, max_tokens: int, threads: int | None, say: Say
) -> tuple[Templates, list[Agreement], int]:
    """The three modes, and the number of prompts whose reply the adapter changes."""
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


class WideChild:
    """A server with its memory of the prompt in float32; all else is as users have it. It runs in this process, because
    a comparison need not survive its crash."""

    def __init__(self, settings: ServerSettings) -> None:
        import xllamacpp

        plain = xllamacpp.CommonParams

        def wide() -> Any:
            params = plain()
            params.cache_type_k = params.cache_type_v = GGML_F32
            params.flash_attn_type = NO_FLASH_ATTENTION
            return params

        with patch.object(xllamacpp, "CommonParams", wide):
            self.server = local_server._serve(settings)
        self.port = urlsplit(self.server.listening_address).port
        self.key = Secret(settings.key)
        self.process = SimpleNamespace(returncode=None)

    async def stop(self) -> None:
        self.server = None


async def _spawn_wide(settings: ServerSettings) -> WideChild:
    return await asyncio.to_thread(WideChild, settings)


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
    """Each prompt's greedy continuation with the end mark. Prompts of similar length share a batch."""
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
    """The same from llama.cpp with its own template. Its chat endpoint does not return all ids."""
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
    """Both chat templates on every prompt: the text that each makes, and the ids that each reads in that text."""
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
        if position is None:  # impossible while both end with an end mark or at the same length
            raise RuntimeError(f"prompt {index}: {left} and {right} differ in length only")
        gap = _gap(_runner(files, mode), rows[index] + left[:position], left[position], right[position])
        words = (tokenizer.decode([left[position]]), tokenizer.decode([right[position]]))
        differences.append(Difference(index, position, *words, gap))
    return Agreement(mode, len(rows) - len(differences), len(rows), tuple(differences))


@torch.no_grad()
def _gap(model: Any, ids: Tokens, preferred: int, other: int) -> float:
    logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
    return float(logits[preferred] - logits[other])


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _print_table(part: Part, precision: Precision) -> None:
    templates, of = part.templates, part.templates.of
    print(f"{of} prompts, {part.subject.tokens} tokens each, {precision} base")
    print(f"chat template  {templates.same_text} of {of} texts and {templates.same_ids} of {of} rows of ids agree")
    print(f"the adapter changes {part.changed} of {of} replies\n")
    print("mode     same tokens   first difference (torch / llama.cpp, and their distance in torch)")
    for row in part.agreements:
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
    parser.add_argument("--tokens", type=int, default=24, help="the most tokens of a reply")
    parser.add_argument("--adapter", type=Path, help="a PEFT adapter folder (default: a random one)")
    parser.add_argument("--weights", type=Path, help="GGUF of the base (default: the fetched smollm2-135m)")
    parser.add_argument("--precision", choices=get_args(Precision), nargs="+", default=["f16"])
    parser.add_argument("--threads", type=int, help="llama.cpp's threads (default: all cores)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    parser.add_argument("--out", type=Path, help=f"a .json file to write (published: {PUBLISHED.relative_to(ROOT)})")
    parser.add_argument("--page", action="store_true", help="only write the page of --out anew")
    return parser.parse_args()


if __name__ == "__main__":
    main()
