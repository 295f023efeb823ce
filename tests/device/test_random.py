# SPDX-License-Identifier: Apache-2.0
"""Seeds, states and generators. (The numbers that operators draw are tested with the operators.)"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, random_split


def test_seeding(device: str, device_module: ModuleType) -> None:
    torch.manual_seed(42)
    assert device_module.initial_seed() == 42
    device_module.manual_seed(7)
    assert device_module.initial_seed() == 7
    device_module.manual_seed_all(-3)
    assert device_module.initial_seed() == 2**64 - 3
    assert device_module.seed() == device_module.initial_seed()
    device_module.seed_all()
    assert device_module.initial_seed() == device_module.default_generators[0].initial_seed()


def test_state_round_trip(device_module: ModuleType) -> None:
    device_module.manual_seed(5)
    state = device_module.get_rng_state()
    assert state.device.type == "cpu" and state.dtype == torch.uint8
    device_module.manual_seed(6)
    assert not torch.equal(device_module.get_rng_state(), state)
    device_module.set_rng_state(state)
    assert device_module.initial_seed() == 5
    device_module.set_rng_state_all(device_module.get_rng_state_all())
    assert torch.equal(device_module.get_rng_state(), state)


def test_wrong_states(device: str, device_module: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="size"):
        device_module.set_rng_state(torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(TypeError):
        device_module.set_rng_state(torch.zeros(16))
    with pytest.raises(TypeError):
        device_module.set_rng_state(torch.zeros(16, dtype=torch.uint8).to(device))


def test_generators(device: str) -> None:
    generator = torch.Generator(device=device)
    assert generator.device.type == device
    assert generator.manual_seed(9) is generator and generator.initial_seed() == 9
    other = torch.Generator(device).set_state(generator.get_state())
    assert other.initial_seed() == 9
    copy = generator.clone_state()
    assert copy.initial_seed() == 9
    generator.set_offset(4)
    assert generator.get_offset() == 4 and copy.get_offset() == 0
    assert generator.seed() == generator.initial_seed()


def test_fork_rng(device: str, device_module: ModuleType) -> None:
    device_module.manual_seed(1)
    with torch.random.fork_rng(devices=[0], device_type=device):
        device_module.manual_seed(2)
    assert device_module.initial_seed() == 1


def test_draws_follow_seed_and_offset(device: str, device_module: ModuleType) -> None:
    device_module.manual_seed(3)
    first = torch.rand(100, device=device).cpu()
    state = device_module.get_rng_state()
    second = torch.rand(100, device=device).cpu()
    device_module.set_rng_state(state)
    assert torch.equal(torch.rand(100, device=device).cpu(), second)
    device_module.manual_seed(3)
    assert torch.equal(torch.rand(100, device=device).cpu(), first)
    assert not torch.equal(first, second)
    own = torch.Generator(device).manual_seed(3)
    assert torch.equal(torch.rand(100, device=device, generator=own).cpu(), first)
    with pytest.raises(RuntimeError):
        torch.rand(3, device=device, generator=torch.Generator("cpu"))


def of(place: str) -> torch.Generator:
    """A generator with a seed."""
    return torch.Generator(place).manual_seed(11)


Draw = Callable[[str, torch.Generator], torch.Tensor]
FACTORIES: list[Draw] = [
    lambda place, generator: torch.rand(9, device=place, generator=generator),
    lambda place, generator: torch.randn(9, device=place, generator=generator),
    lambda place, generator: torch.normal(0.0, 1.0, (9,), device=place, generator=generator),
    lambda place, generator: torch.empty(9, device=place).uniform_(generator=generator),
    lambda place, generator: torch.empty(9, device=place).exponential_(generator=generator),
    lambda place, generator: torch.empty(9, device=place).random_(generator=generator),
    lambda place, generator: torch.full((9,), 0.5, device=place).bernoulli(generator=generator),
    lambda place, generator: torch.empty(9, device=place).bernoulli_(0.5, generator=generator),
    lambda place, generator: torch.normal(torch.zeros(9, device=place), 1.0, generator=generator),
    lambda place, generator: torch.rand(9, generator=generator, out=torch.empty(9, device=place)),
    lambda place, generator: torch.randn(9, generator=generator, out=torch.empty(9, device=place)),
]
INDICES: list[Draw] = [
    lambda place, generator: torch.randperm(9, device=place, generator=generator),
    lambda place, generator: torch.randint(99, (9,), device=place, generator=generator),
    lambda place, generator: torch.randint(5, 99, (9,), device=place, generator=generator),
]


@pytest.mark.parametrize("draw", [*FACTORIES, *INDICES])
def test_draws_with_generators(device: str, draw: Draw) -> None:
    """A generator decides alone; on the CPU, one of the device is refused, as CUDA's are."""
    torch.manual_seed(1)
    found = draw(device, of(device))
    torch.manual_seed(2)
    assert torch.equal(draw(device, of(device)), found) and found.device.type == device
    assert not torch.equal(draw(device, torch.Generator(device).manual_seed(12)), found)
    with pytest.raises(RuntimeError, match=f"Expected a 'cpu' device type for generator but found '{device}'"):
        draw("cpu", of(device))


@pytest.mark.parametrize("draw", FACTORIES)
def test_generators_of_the_cpu_are_refused(device: str, draw: Draw) -> None:
    with pytest.raises(RuntimeError, match=f"Expected a '{device}' device type for generator but found 'cpu'"):
        draw(device, of("cpu"))


@pytest.mark.parametrize("draw", INDICES)
def test_indices_may_be_drawn_by_the_cpu(device: str, draw: Draw) -> None:
    found = draw(device, of("cpu"))
    assert found.device.type == device
    assert torch.equal(found.cpu(), draw("cpu", of("cpu")))


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32])
def test_random_orders(device: str, device_module: ModuleType, n: int, dtype: torch.dtype) -> None:
    device_module.reset_fallbacks()
    device_module.manual_seed(4)
    found = torch.randperm(n, device=device, dtype=dtype)
    device_module.manual_seed(4)
    assert torch.equal(torch.randperm(n, device=device, dtype=dtype), found)
    assert found.dtype == dtype and found.sort().values.tolist() == list(range(n))
    assert n < 1000 or not torch.equal(torch.randperm(n, device=device, dtype=dtype), found)
    assert not device_module.fallbacks()


def test_compiled_random_orders(device: str, device_module: ModuleType) -> None:
    device_module.reset_fallbacks()
    draw = torch.compile(lambda x: torch.randperm(x.shape[0], device=x.device) + x, fullgraph=True)
    x = torch.zeros(100, dtype=torch.int64, device=device)
    found = []
    for _ in range(2):
        device_module.manual_seed(4)
        found.append(draw(x))
    assert torch.equal(*found) and found[0].sort().values.tolist() == list(range(100))
    assert not torch.equal(draw(x), found[0]) and not device_module.fallbacks()


def test_wrong_random_orders(device: str) -> None:
    for wrong, dtype in ((-1, torch.int64), (300, torch.uint8)):
        errors = []
        for place in ("cpu", device):
            with pytest.raises(RuntimeError) as raised:
                torch.randperm(wrong, dtype=dtype, device=place)
            errors.append(str(raised.value).partition("\n")[0])
        assert errors[0] == errors[1]


@pytest.mark.parametrize("replacement", [False, True])
def test_loaders_that_shuffle_on_a_default_device(device: str, replacement: bool) -> None:
    data = TensorDataset(torch.arange(40))
    with torch.device(device):
        for generator in (None, of(device), of("cpu")):
            sampler = RandomSampler(data, replacement=replacement, generator=generator)
            found = torch.cat([batch for (batch,) in DataLoader(data, sampler=sampler, batch_size=7)])
            assert len(found) == 40 and (replacement or sorted(found.tolist()) == list(range(40)))
        assert len(list(DataLoader(data, shuffle=True, batch_size=7))) == 6
        assert sum(map(len, random_split(data, [30, 10]))) == 40


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_the_end_of_a_range_is_never_drawn(device: str, dtype: torch.dtype, compiled: bool) -> None:
    """Of what is rounded to a half, some would be: a logarithm of 1 - x would be infinite."""
    n = 200_000
    start = torch.zeros(n, dtype=dtype, device=device)

    def draw() -> tuple[torch.Tensor, ...]:
        return torch.rand(n, dtype=dtype, device=device), torch.rand_like(start)

    draws = torch.compile(draw)() if compiled else (*draw(), start.clone().uniform_())
    for x in draws:
        assert x.min() >= 0 and x.max() < 1
        assert abs(x.double().mean().item() - 0.5) < 0.01
    if not compiled:
        for low, high in ((100.0, 101.0), (-3.0, 5.0), (-1.0, 0.0), (-1.5, -0.75)):
            x = start.uniform_(low, high)
            assert x.min() >= low and x.max() < high


def in_both_ways(draw: Callable[[], tuple[torch.Tensor, ...]], compiled: bool) -> list[torch.Tensor]:
    """What is drawn by single calls, or by one graph, on the CPU in float64."""
    made = torch.compile(draw)() if compiled else draw()
    return [x.cpu().double() for x in made]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_doubles_have_their_digits(device: str, compiled: bool) -> None:
    def draw() -> tuple[torch.Tensor, ...]:
        x = torch.empty(1000, dtype=torch.float64, device=device)
        return (
            torch.rand_like(x),
            torch.randn_like(x),
            x.clone().exponential_(),
            x.clone().uniform_(0, 1e39),
            x.clone().normal_(1e300, 1e299),
            x.clone().cauchy_(0, 1e300),
            x.clone().log_normal_(300, 1),
        )

    torch.manual_seed(3)
    uniform, *others = in_both_ways(draw, compiled)
    assert ((uniform * 2**53) % 2**24).unique().numel() > 990  # two may well be equal
    normal, exponential, wide, far, cauchy, log_normal = others
    for x in others:
        assert x.isfinite().all() and (x != x.float()).sum() > 990
    assert abs(normal.mean()) < 0.15 and abs(exponential.mean() - 1) < 0.15
    assert abs(wide.mean() / 1e39 - 0.5) < 0.05 and abs(far.mean() / 1e300 - 1) < 0.02
    assert 0.5e300 < cauchy.abs().median() < 1.6e300 and 250 < log_normal.log().mean() < 350


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_rare_numbers_are_as_rare(device: str, dtype: torch.dtype, compiled: bool) -> None:
    """Numbers next to 0, by how often they must be: exponential ones are never 0, small chances small."""
    n = 1 << 20

    def draw() -> tuple[torch.Tensor, ...]:
        x = torch.empty(n, dtype=dtype, device=device)
        rates = x.clone().exponential_(1000.0), x.clone().exponential_()
        happens = x.clone().bernoulli_(1e-9), x.clone().bernoulli_(1.0), torch.full_like(x, 0.0).bernoulli()
        return *rates, *happens, torch.nn.functional.dropout(torch.ones_like(x), 0.5)

    torch.manual_seed(4)
    short, whole, never, always, none, half = in_both_ways(draw, compiled)
    assert short.min() > 0 and whole.min() > 0 and abs(whole.mean() - 1) < 0.01
    assert whole.lt(1e-3).sum().item() == pytest.approx(n * 1e-3, rel=0.15)
    assert never.sum() == 0 and always.sum() == n and none.sum() == 0
    assert half.eq(0).double().mean().item() == pytest.approx(0.5, abs=0.003)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.bool, torch.float16, torch.bfloat16], ids=str)
def test_the_greatest_integer_is_drawn(device: str, dtype: torch.dtype) -> None:
    found = torch.empty(200_000, dtype=dtype, device=device).random_().cpu()
    expected = torch.empty(200_000, dtype=dtype).random_()
    assert found.min() == expected.min() and found.max() == expected.max()
    if dtype in (torch.uint8, torch.int8):
        found = torch.empty(200_000, dtype=dtype, device=device).random_(100, None).cpu()
        assert found.min() == 100 and found.max() == torch.iinfo(dtype).max


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_numbers_have_two_random_parts(device: str, device_module: ModuleType, dtype: torch.dtype) -> None:
    device_module.reset_fallbacks()
    for draw, deviation in (
        (lambda: torch.rand(10_000, dtype=dtype, device=device), 12**-0.5),
        (lambda: torch.randn(10_000, dtype=dtype, device=device), 2**-0.5),
        (lambda: torch.normal(1.0, 3.0, (10_000,), dtype=dtype, device=device), 3 * 2**-0.5),
    ):
        parts = torch.view_as_real(draw()).cpu()
        assert parts.std(0).tolist() == pytest.approx([deviation] * 2, rel=0.05)
        assert abs(torch.corrcoef(parts.T)[0, 1]) < 0.05
    assert not device_module.fallbacks()
    with pytest.raises(RuntimeError, match="continuous"):
        torch.empty(3, dtype=dtype, device=device).exponential_()
