"""Training lowers the loss, can be interrupted anywhere, and what it makes runs in the engine."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_training import SHAPE, STEPS, prepared, recipe

from monolane.errors import ModelFileError, UnsupportedModelError, UsageError
from monolane.model.load import load_model
from monolane.target import open_target
from monolane.train.__main__ import main
from monolane.train.checkpoint import read_state
from monolane.train.export import export
from monolane.train.laneformer import Laneformer, Layer
from monolane.train.presets import PRESETS, config_of
from monolane.train.recipe import Recipe
from monolane.train.run import train
from monolane.train.tokens import Sequences, TokenData, open_tokens
from monolane.train.training import Training, initialise, load_weights

CPU = torch.device("cpu")
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"broadcast_delay": 0},
    "ladder": {"broadcast_delay": 0, "ladder": True},
    "delay of one": {"broadcast_delay": 1},
    "delay of two": {"broadcast_delay": 2, "num_lanes": 2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("training"))


@pytest.fixture(scope="module")
def data(folder: Path) -> TokenData:
    return open_tokens(folder, CPU)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The models are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trained(wanted: Recipe, data: TokenData, file: Path, minutes: float = math.inf) -> dict[str, Any]:
    return train(wanted, data, CPU, file, minutes, lambda _: None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_steps_lower_the_loss(kind: str, data: TokenData, tmp_path: Path) -> None:
    result = trained(recipe(**KINDS[kind]), data, tmp_path / "checkpoint.safetensors")
    losses = [point["training_loss"] for point in result["curve"]]
    assert result["finished"]
    assert len(losses) == STEPS
    assert losses[0] == pytest.approx(np.log(SHAPE["vocab_size"]), abs=0.3)
    assert losses[-1] < losses[0] - 0.5
    assert result["validation_loss"] < losses[0] - 0.5
    assert result["tokens_trained"] == result["tokens"] == STEPS * 4 * SHAPE["max_position_embeddings"]


def test_an_interrupted_run_is_the_same_run(data: TokenData, tmp_path: Path) -> None:
    wanted = recipe()
    whole = trained(wanted, data, tmp_path / "whole.safetensors")
    for sitting in range(1, STEPS + 1):
        result = trained(wanted, data, tmp_path / "parts.safetensors", minutes=0)  # a sitting has a step at least
        assert result["finished"] == (sitting == STEPS)
    assert result["curve"] == whole["curve"]
    one, other = Laneformer(wanted.shape), Laneformer(wanted.shape)
    load_weights(tmp_path / "whole.safetensors", one)
    load_weights(tmp_path / "parts.safetensors", other)
    for parameter, same in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(parameter, same)


def test_the_time_limit_leaves_a_checkpoint_and_nothing_else(data: TokenData, tmp_path: Path) -> None:
    result = trained(recipe(), data, tmp_path / "checkpoint.safetensors", minutes=0)
    assert not result["finished"]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.safetensors"]
    assert read_state(tmp_path / "checkpoint.safetensors")["step"] == 1


def test_a_finished_run_is_not_trained_again(data: TokenData, tmp_path: Path) -> None:
    first, again = (trained(recipe(), data, tmp_path / "checkpoint.safetensors") for _ in range(2))
    assert again["finished"]
    assert again["curve"] == first["curve"]
    assert again["seconds"] == first["seconds"]


def test_other_options_or_data_do_not_go_on(data: TokenData, tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.safetensors"
    trained(recipe(), data, file, minutes=0)
    for wanted in (recipe(seed=1), recipe(broadcast_delay=1), recipe(hidden_size=48)):
        with pytest.raises(UsageError, match="another run"):
            trained(wanted, data, file)
    with pytest.raises(UsageError, match="another run"):
        trained(recipe(), replace(data, sha256="of others"), file)


def test_a_damaged_checkpoint_is_named(data: TokenData, tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.safetensors"
    trained(recipe(), data, file, minutes=0)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelFileError, match=r"checkpoint\.safetensors is no checkpoint"):
        trained(recipe(), data, file)
    file.write_bytes((2).to_bytes(8, "little") + b"{}")  # no tensors, no state
    with pytest.raises(ModelFileError, match="is no checkpoint"):
        trained(recipe(), data, file)


def test_micro_batches_do_not_change_the_step(data: TokenData) -> None:
    losses = []
    for micro_batch in (1, 4):
        training = Training(recipe(micro_batch=micro_batch), data, CPU)
        losses.append([training.step() for _ in range(3)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_every_pass_sees_every_sequence_in_another_order() -> None:
    sequences = Sequences(torch.arange(101), length=10, seed=3)
    assert sequences.count == 10
    passes = [sequences.batch(first, 10) for first in (0, 10)]
    for seen in passes:
        assert sorted(seen[:, 0].tolist()) == list(range(0, 100, 10))
        assert torch.equal(seen, seen[:, :1] + torch.arange(11))
    assert not torch.equal(passes[0], passes[1])
    assert torch.equal(torch.cat(passes)[7:13], sequences.batch(7, 6))


def test_the_learning_rate_warms_up_and_decays() -> None:
    long = replace(recipe(), tokens=1000 * recipe().step_tokens)
    rates = [long.rate_at(step) for step in range(long.steps)]
    assert rates[0] < rates[20] < rates[39] == max(rates) == long.learning_rate
    assert rates[-1] == pytest.approx(0.1 * long.learning_rate, rel=0.01)


def test_a_ladder_reads_what_was_there_one_module_earlier() -> None:
    wanted = recipe(broadcast_delay=0, ladder=True)
    model = Laneformer(wanted.shape, ladder=True)
    initialise(model)
    tokens = torch.arange(20)[None]
    rope = model.model._rope(20)
    states = [model.model.tok_embeddings(tokens)[:, :, None]] * 2  # before the first module there was no other
    for layer in model.model.layers:
        assert isinstance(layer, Layer)
        for norm, module in ((layer.attention_norm, layer.attention), (layer.ffn_norm, layer.feed_forward)):
            states.append(states[-1] + module(norm(states[-2]), rope, True))
    torch.testing.assert_close(model(tokens), model.logits_of(states[-1]))


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_streams_are_nearly_the_same_model(kind: str) -> None:
    wanted = recipe(**KINDS[kind])
    model = Laneformer(wanted.shape, wanted.ladder)
    tokens = torch.arange(20)[None]
    exact = model(tokens)
    model.model.stream_type = torch.bfloat16
    rough = model(tokens)
    assert rough.dtype == torch.bfloat16
    assert (rough.float() - exact).std() < 0.02 * exact.std()


def test_equal_layers_are_compiled_once(data: TokenData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()  # other tests of this process compile, too
    for seed in (0, 1):
        eager, compiled = (Training(recipe(seed=seed), data, CPU) for _ in range(2))
        compiled._compile()
        losses = [[training.step(), training.step()] for training in (eager, compiled)]
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)  # the compiled one is bf16
        compiled.validation_loss()
    counters = torch._dynamo.utils.counters
    # The first layer, whose streams are one; the second; those that receive; the last, which send nothing; the loss.
    assert counters["stats"]["unique_graphs"] == 5
    assert not counters["graph_break"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_trains_like_a_cpu(kind: str, folder: Path, data: TokenData, tmp_path: Path) -> None:
    wanted, gpu = recipe(**KINDS[kind]), torch.device("cuda")
    ours = train(wanted, open_tokens(folder, gpu), gpu, tmp_path / "gpu.safetensors", math.inf, print)
    cpu = trained(wanted, data, tmp_path / "cpu.safetensors")
    for one, other in zip(ours["curve"], cpu["curve"], strict=True):
        assert one["training_loss"] == pytest.approx(other["training_loss"], rel=0.02)


@pytest.mark.parametrize("kind", ["plain", "delay of one", "delay of two"])
def test_an_exported_model_is_the_module_in_the_engine(
    kind: str, folder: Path, data: TokenData, tmp_path: Path
) -> None:
    wanted = recipe(**KINDS[kind], tie_word_embeddings=kind == "plain")
    trained(wanted, data, tmp_path / "checkpoint.safetensors")
    export(tmp_path / "checkpoint.safetensors", folder, tmp_path / "model")
    model = load_model(tmp_path / "model")
    assert model.stop_tokens == {model.tokenizer.token_id("<|endoftext|>")}
    module = Laneformer(wanted.shape)
    load_weights(tmp_path / "checkpoint.safetensors", module)
    prompt = model.tokenizer.encode("def function_1(argument)")[:20]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.bfloat16())  # what the folder has
        expected = module(torch.tensor([prompt]))[0].numpy()
    with closing(
        open_target(
            model.config, model.weights, device="interpreter", workers=2, lanes=None, context=24, cache_format="f32"
        )
    ) as target:
        np.testing.assert_allclose(target.logits(prompt), expected, atol=5e-5 * expected.std(), rtol=0)


def test_the_published_keys_are_exported(folder: Path, data: TokenData, tmp_path: Path) -> None:
    trained(recipe(), data, tmp_path / "checkpoint.safetensors", minutes=0)
    export(tmp_path / "checkpoint.safetensors", folder, tmp_path / "model")
    assert json.loads((tmp_path / "model/config.json").read_text()).items() >= SHAPE.items()
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in (tmp_path / "model").iterdir()} == names


def test_a_ladder_is_not_exported(folder: Path, data: TokenData, tmp_path: Path) -> None:
    trained(recipe(**KINDS["ladder"]), data, tmp_path / "checkpoint.safetensors", minutes=0)
    with pytest.raises(UnsupportedModelError, match="Ladder Residual"):
        export(tmp_path / "checkpoint.safetensors", folder, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_the_tiny_model_is_tiny() -> None:
    name, config = config_of("laneformer-tiny")
    with torch.device("meta"):
        model = Laneformer(Recipe(name, config, tokens=1).shape)
    assert sum(parameter.numel() for parameter in model.parameters()) < 12e6


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"batch": 5}, "cannot be divided"),
        ({"learning_rate": 0.0}, "learning rate"),
        ({"ladder": True}, "Ladder Residual has no delay"),
        ({"num_lanes": 1}, "no Laneformer with several lanes"),
    ],
)
def test_recipes_that_cannot_be(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        recipe(**changes)


def test_a_model_with_too_few_tokens(data: TokenData) -> None:
    with pytest.raises(UsageError, match="300 different tokens"):
        Training(recipe(vocab_size=299), data, CPU)


def test_a_context_longer_than_the_text(data: TokenData) -> None:
    with pytest.raises(UsageError, match="too few for a sequence"):
        Training(recipe(max_position_embeddings=1 << 20), data, CPU)


def test_tokens_that_are_not_there(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UsageError, match="no tokens"):
        open_tokens(tmp_path, CPU)
    (tmp_path / "tokens.json").write_text((folder / "tokens.json").read_text())
    (tmp_path / "train.npy").write_bytes((folder / "train.npy").read_bytes()[:300])
    with pytest.raises(UsageError, match="cannot be read"):
        open_tokens(tmp_path, CPU)
    np.save(tmp_path / "train.npy", np.full(10, 5000, np.uint16))
    with pytest.raises(UsageError, match="does not contain tokens of the vocabulary"):
        open_tokens(tmp_path, CPU)


def test_commands_from_data_to_export(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    run = ["run", "config.json", "--data", str(folder), "--out", "run", "--batch", "4", "--micro-batch", "4"]
    assert main(["data", "--site", str(folder.parent / "site"), "--data", "data"]) == 0
    assert main(["tokenizer", "--vocab", "300", "--data", "data"]) == 0
    assert (tmp_path / "data/train.npy").read_bytes() == (folder / "train.npy").read_bytes()
    assert main([*run, "--tokens", "0.3k", "--device", "cpu"]) == 0
    assert json.loads((tmp_path / "run/result.json").read_text())["finished"]
    assert main(["export", "run", "model", "--data", "data"]) == 0
    assert load_model(tmp_path / "model").config.lanes is not None
    capsys.readouterr()
    assert main(["run", "nothing", "--out", "other", "--tokens", "1M"]) == 2
    assert ", ".join(PRESETS) in capsys.readouterr().err
