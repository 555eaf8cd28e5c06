"""Training tells nobody that it happens, and libraries do not talk into its log."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest


def test_the_libraries_send_no_telemetry() -> None:
    program = (
        "from dirigent_gym.train.run import quieten; quieten(); import huggingface_hub.constants as c; "
        "print(c.HF_HUB_DISABLE_TELEMETRY)"
    )
    environment = {name: value for name, value in os.environ.items() if "TELEMETRY" not in name}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_what_peft_and_transformers_say_of_every_run_is_not_shown_and_all_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="needs the train extra")
    import transformers
    from peft.utils import save_and_load
    from transformers import modeling_gguf_pytorch_utils as reading

    from dirigent_gym.train.base import load_base
    from dirigent_gym.train.recipe import TinySettings
    from dirigent_gym.train.run import quieten
    from dirigent_gym.train.sft import SftSettings, save_adapter, with_adapter
    from dirigent_gym.train.tiny import tiny_base

    model, tokenizer = tiny_base(["a b c d"], settings=TinySettings(), seed=1)

    def converted(*_: Any, **__: Any) -> Any:
        list(reading.tqdm(range(3), desc="Converting and de-quantizing"))
        return model

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", converted)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: tokenizer)
    load_base(tmp_path / "any.gguf", device="cpu")
    assert capfd.readouterr().err == ""
    list(reading.tqdm(range(3), desc="another"))
    assert "another" in capfd.readouterr().err

    monkeypatch.setattr(save_and_load, "check_file_exists_on_hf_hub", lambda *_: None)
    model = with_adapter(model, "own", SftSettings(rank=2))
    model.peft_config["own"].base_model_name_or_path = str(tmp_path / "base")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        save_adapter(model, "own", tmp_path)
        assert len(said) == 1, "else PEFT says it no longer, and the filter can go"
        quieten()
        save_adapter(model, "own", tmp_path)
        warnings.warn("something else", stacklevel=1)
    assert [str(one.message) for one in said[1:]] == ["something else"]
