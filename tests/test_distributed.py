"""Layers, losses and checkpoints over several processes, against one process."""

import subprocess
import sys
from typing import Any

import distributed_checks as checks
import pytest
import torch
from torch.multiprocessing.spawn import spawn
from torch_sparse_ops import losses


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the checks returned, by process."""
    directory = tmp_path_factory.mktemp("ranks")
    spawn(checks.run, (directory,), nprocs=checks.RANKS)
    return [torch.load(directory / f"{rank}.pt") for rank in range(checks.RANKS)]


def agree(found: list[dict[str, Any]], name: str) -> Any:
    """Return what all processes returned, which must be the same."""
    first, *others = [results[name] for results in found if name in results]
    assert not isinstance(first, str), first
    for other in others:
        assert not isinstance(other, str), other
        torch.testing.assert_close(other, first, rtol=0, atol=0)
    return first


@pytest.mark.parametrize(
    ("name", "loss", "dtype"),
    [
        ("cross-entropy on 4", checks.cross_entropy, torch.float64),
        ("cross-entropy on 2", checks.cross_entropy, torch.float64),
        ("cross-entropy on 4, float32", checks.cross_entropy, torch.float32),
        ("binary cross-entropy on 4", checks.binary_cross_entropy, torch.float64),
        ("logits gathered", checks.Unfused, torch.float64),
        ("logits sharded", checks.Unfused, torch.float64),
    ],
)
def test_training_by_outputs_is_training_in_one_process(
    found: list[dict[str, Any]], name: str, loss: checks.MakeLoss, dtype: torch.dtype
) -> None:
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}[dtype]
    alone = checks.train_alone(loss, dtype)
    assert len(alone) == checks.STEPS
    torch.testing.assert_close(agree(found, name), alone, rtol=tolerance, atol=0)


@pytest.mark.parametrize("outputs", ["", " and outputs"])
@pytest.mark.parametrize("wrapper", ["DistributedDataParallel", "fully_shard"])
def test_training_on_parts_of_the_batch_is_training_in_one_process(
    found: list[dict[str, Any]], wrapper: str, outputs: str
) -> None:
    losses_of_parts = [results[wrapper + outputs] for results in found]
    assert not any(isinstance(part, str) for part in losses_of_parts), losses_of_parts
    means = torch.tensor(losses_of_parts, dtype=torch.float64).mean(dim=0)
    torch.testing.assert_close(means.tolist(), checks.train_alone(), rtol=1e-12, atol=0)


def test_replicas_exchange_the_connections_that_one_process_does(found: list[dict[str, Any]]) -> None:
    locations, weights = agree(found, "exchanged connections")
    expected_locations, expected_weights = checks.train_exchanging()
    assert torch.equal(locations, expected_locations)
    torch.testing.assert_close(weights, expected_weights, rtol=1e-10, atol=0)
    assert not torch.equal(locations, checks.Model(checks.cross_entropy, torch.float64).layer.locations)


def test_a_checkpoint_of_four_processes_is_loaded_by_two(found: list[dict[str, Any]]) -> None:
    before_and_after = agree(found, "saved")
    torch.testing.assert_close(agree(found, "loaded"), before_and_after[checks.STEPS :], rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["replicate", "dtensor", "shard"])
def test_the_result_has_the_layout_asked_for(found: list[dict[str, Any]], name: str) -> None:
    layer, features = checks.draw_layer(), checks.draw_features().requires_grad_()
    whole = layer(features)
    whole.square().sum().backward()
    gradients = [features.grad, *(parameter.grad for parameter in layer.parameters())]
    for results, part in zip(found, whole.detach().chunk(checks.RANKS, dim=1), strict=True):
        result, its_gradients = results["layouts"][name]
        torch.testing.assert_close(result, part if name == "shard" else whole.detach())
        torch.testing.assert_close(its_gradients, gradients)


def test_a_layer_sharded_on_meta_is_drawn_as_a_whole_one(found: list[dict[str, Any]]) -> None:
    expected = list(checks.draw_layer().state_dict().values())
    torch.testing.assert_close(agree(found, "reset"), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "outputs"), [("1003 outputs", checks.OUTPUTS), ("5 outputs", 5), ("int16", checks.OUTPUTS)]
)
def test_loss_gradients_and_largest_outputs(found: list[dict[str, Any]], name: str, outputs: int) -> None:
    torch.testing.assert_close(agree(found, name), checks.predict(checks.draw_layer(outputs)))


def test_losses_take_features_of_any_placement(found: list[dict[str, Any]]) -> None:
    expected = checks.compute_loss(checks.draw_features(), checks.draw_layer())
    torch.testing.assert_close(agree(found, "loss of rows"), expected)


def test_operators_take_dtensors_of_sharded_rows(found: list[dict[str, Any]]) -> None:
    layer, features = checks.draw_layer(), checks.draw_features().requires_grad_()
    result = layer(features)
    result.square().sum().backward()
    expected = [result.detach(), features.grad, *(parameter.grad for parameter in layer.parameters())]
    torch.testing.assert_close(agree(found, "rows"), expected)


def test_the_sharded_loss_compiles_in_one_graph(found: list[dict[str, Any]]) -> None:
    features = checks.draw_features().requires_grad_()
    loss = losses.linear_cross_entropy(features, checks.draw_layer(), torch.arange(checks.BATCH))
    (gradient,) = torch.autograd.grad(loss, features)
    torch.testing.assert_close(agree(found, "compiled"), [loss.item(), gradient.norm().item()])


# ---- refusals


def test_a_layer_that_fully_shard_left_sharded_is_refused(found: list[dict[str, Any]]) -> None:
    for results in found:
        message = results["unsharded locations"]
        assert "received placements [(Shard(dim=0),), None, (Shard(dim=0),)] of weight, locations" in message
        assert "apply it to the loss or to what holds the loss" in message


def test_other_modules_are_refused(found: list[dict[str, Any]]) -> None:
    message = (
        "FixedFanInParallel: received Linear, accepted is FixedFanInLinear; to shard a loss name the layer "
        'in it, as in {"loss.layer": FixedFanInParallel()}'
    )
    assert {results["another module"] for results in found} == {message}


def test_a_mesh_of_two_dimensions_is_refused(found: list[dict[str, Any]]) -> None:
    message = (
        "FixedFanInParallel: received a mesh of 2 dimensions, accepted is one of 1 dimension; take it by "
        'name, as in mesh["tp"]'
    )
    assert {results["another mesh"] for results in found} == {message}


def test_parts_of_a_layer_exchange_no_connections(found: list[dict[str, Any]]) -> None:
    message = (
        "RigL: the weight of layer 'loss.layer' is a DTensor; exchange connections of whole layers, with "
        "DistributedDataParallel for several processes"
    )
    assert {results["exchange of parts"] for results in found} == {message}


def test_the_package_does_not_load_dtensors() -> None:
    program = "import sys, torch_sparse_ops; print('torch.distributed.tensor' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
