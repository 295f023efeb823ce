# SPDX-License-Identifier: Apache-2.0
"""Libraries of other fields than vision and language, which need no adapter: what they compute on the device is what
they compute on the CPU, gradients included. Factorisations run on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytestmark = pytest.mark.skipif(os.environ.get("OUTBOARD_TEST_ECOSYSTEM") != "1", reason="make test-ecosystem")

#: What a program computes on the device of that name.
Program = Callable[[str], Sequence[Tensor]]


def _compare(program: Program, device: str, tolerance: float = 1e-3) -> None:
    """Runs a program on the CPU and on the device, from the same random numbers of the CPU."""
    results = []
    for place in ("cpu", device):
        torch.manual_seed(0)
        results.append([value.detach().cpu() for value in program(place)])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance / 10)


def _fit(loss: Callable[[], Tensor], parameters: Sequence[Tensor], steps: int = 5) -> Tensor:
    """The losses of some steps of Adam."""
    optimizer, losses = torch.optim.Adam(parameters, lr=0.1), []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(value.detach())
    return torch.stack(losses)


def test_gaussian_processes(device: str) -> None:
    gpytorch = pytest.importorskip("gpytorch")

    class Model(gpytorch.models.ExactGP):  # type: ignore[misc, name-defined]
        def __init__(self, x: Tensor, y: Tensor, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))

    def program(place: str) -> Sequence[Tensor]:
        x = torch.linspace(0, 1, 60)
        y = torch.sin(6.28 * x) + 0.1 * torch.randn(60)
        x, y = x.to(place), y.to(place)
        likelihood = gpytorch.likelihoods.GaussianLikelihood().to(place)
        model = Model(x, y, likelihood).to(place).train()
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        losses = _fit(lambda: -objective(model(x), y), list(model.parameters()))
        model.eval()
        with torch.no_grad():
            found = likelihood.eval()(model(torch.linspace(0, 1, 20).to(place)))
        return losses, found.mean, found.variance

    _compare(program, device)


@pytest.mark.parametrize("method", ["dopri5", "rk4", "explicit_adams", "implicit_adams"])
def test_differential_equations(method: str, device: str) -> None:
    torchdiffeq = pytest.importorskip("torchdiffeq")

    def program(place: str) -> Sequence[Tensor]:
        net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)).to(place)
        flow = nn.Module()
        flow.net = net
        flow.forward = lambda t, y: net(y**3)
        start, times = torch.tensor([[2.0, 0.0]]).to(place), torch.linspace(0, 1, 12).to(place)
        path = torchdiffeq.odeint_adjoint(flow, start, times, method=method)
        path.square().mean().backward()
        return path, *(p.grad for p in net.parameters() if p.grad is not None)

    _compare(program, device)


def test_stochastic_differential_equations(device: str) -> None:
    torchsde = pytest.importorskip("torchsde")

    class Process(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.drift = nn.Linear(3, 3)

        def f(self, t: Tensor, y: Tensor) -> Any:
            return self.drift(y)

        def g(self, t: Tensor, y: Tensor) -> Tensor:
            return torch.zeros_like(y)  # devices draw numbers of their own

    def program(place: str) -> Sequence[Tensor]:
        process = Process().to(place)
        path = torchsde.sdeint(process, torch.ones(4, 3, device=place), torch.linspace(0, 1, 5).to(place), dt=0.1)
        path.sum().backward()
        return path, torch.autograd.grad(process.drift(torch.ones(3, device=place)).sum(), process.drift.weight)[0]

    _compare(program, device)


def test_attributions(device: str) -> None:
    attr = pytest.importorskip("captum.attr")

    def program(place: str) -> Sequence[Tensor]:
        model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        model = nn.Sequential(*model, nn.Linear(8 * 64, 5)).to(place).eval()
        x = torch.randn(2, 3, 16, 16).to(place)
        return (
            attr.IntegratedGradients(model).attribute(x, target=1, n_steps=20),
            attr.Saliency(model).attribute(x.clone().requires_grad_(), target=1),
            attr.DeepLift(model).attribute(x, target=1),
            attr.Occlusion(model).attribute(x, sliding_window_shapes=(3, 4, 4), strides=(3, 4, 4), target=1),
            attr.GuidedBackprop(model).attribute(x, target=1),
            attr.LayerGradCam(model, model[0]).attribute(x, target=1),
        )

    _compare(program, device)


def test_variational_inference(device: str) -> None:
    pyro = pytest.importorskip("pyro")
    from pyro import distributions
    from pyro.infer import SVI, Trace_ELBO

    data = (0.5 * torch.randn(100) + 2).to(device)

    def model(x: Tensor) -> None:
        mean = pyro.sample("mean", distributions.Normal(torch.zeros((), device=device), 10.0))
        with pyro.plate("data", len(x)):
            pyro.sample("seen", distributions.Normal(mean, 1.0), obs=x)

    def guide(x: Tensor) -> None:
        place = pyro.param("place", torch.zeros((), device=device))
        spread = pyro.param("spread", torch.ones((), device=device), constraint=distributions.constraints.positive)
        pyro.sample("mean", distributions.Normal(place, spread))

    pyro.clear_param_store()
    inference = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    for _ in range(150):
        inference.step(data)
    assert abs(float(pyro.param("place") - data.mean())) < 0.2


def test_equivariant_products(device: str) -> None:
    o3 = pytest.importorskip("e3nn.o3")

    def program(place: str) -> Sequence[Tensor]:
        kinds = o3.Irreps("2x0e+1x1o+1x2e")
        product = o3.FullyConnectedTensorProduct(kinds, kinds, kinds).to(place)
        x = torch.randn(5, kinds.dim).to(place).requires_grad_()
        y = product(x, x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        harmonics = o3.spherical_harmonics([0, 1, 2, 3], torch.randn(6, 3).to(place), normalize=True)
        return y, gradient, harmonics

    _compare(program, device)


def test_private_gradients(device: str) -> None:
    opacus = pytest.importorskip("opacus")

    def program(place: str) -> Sequence[Tensor]:
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
        model, rows = model.to(place), torch.randn(32, 1, 8, 8)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        made, optimizer, loader = opacus.PrivacyEngine().make_private(
            module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=0.0, max_grad_norm=1.0,
            poisson_sampling=False,
        )  # fmt: skip
        for (batch,) in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(made(batch.to(place)), torch.arange(16, device=place) % 3).backward()
            optimizer.step()
        return list(made.parameters())

    _compare(program, device)


@pytest.mark.parametrize("flow", ["NSF", "MAF", "NICE", "GMM"])
def test_normalizing_flows(flow: str, device: str) -> None:
    flows = pytest.importorskip("zuko.flows")

    def program(place: str) -> Sequence[Tensor]:
        model = getattr(flows, flow)(3).to(place)
        loss = -model().log_prob(torch.randn(8, 3).to(place)).mean()
        loss.backward()
        return loss, *(p.grad for p in model.parameters() if p.grad is not None)

    _compare(program, device)


def test_manifolds(device: str) -> None:
    geoopt = pytest.importorskip("geoopt")

    def program(place: str) -> Sequence[Tensor]:
        ball = geoopt.PoincareBall()
        x, y = (0.2 * torch.randn(2, 5, 3)).to(place).requires_grad_().unbind()
        distance = ball.dist(x, y)
        matrix, goal = torch.linalg.qr(torch.randn(5, 3))[0].to(place), torch.randn(5, 3).to(place)
        on_sphere = geoopt.ManifoldParameter(matrix, manifold=geoopt.Stiefel())
        optimizer = geoopt.optim.RiemannianAdam([on_sphere], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (on_sphere - goal).square().sum().backward()
            optimizer.step()
        gradients = torch.autograd.grad(distance.sum(), (x, y))
        return distance, *gradients, ball.expmap(x, y), ball.mobius_add(x, y), on_sphere

    _compare(program, device)


def test_losses_of_metrics(device: str) -> None:
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    names = ("TripletMarginLoss", "NTXentLoss", "MultiSimilarityLoss", "SupConLoss", "CircleLoss", "AngularLoss")

    def program(place: str) -> Sequence[Tensor]:
        embedded, labels = torch.randn(24, 8).to(place).requires_grad_(), torch.arange(24).to(place) % 6
        values = [getattr(losses, name)()(embedded, labels) for name in names]
        return [*values, *(torch.autograd.grad(value, embedded)[0] for value in values)]

    _compare(program, device)


def test_medical_images(device: str) -> None:
    pytest.importorskip("monai")
    from monai.inferers import sliding_window_inference
    from monai.losses import DiceCELoss, FocalLoss, TverskyLoss
    from monai.networks.nets import SegResNet, UNet

    def program(place: str) -> Sequence[Tensor]:
        volume = torch.randn(1, 1, 16, 16, 16).to(place)
        nets = (
            UNet(3, 1, 2, (4, 8, 16), (2, 2)),
            SegResNet(
                spatial_dims=3, init_filters=8, in_channels=1, out_channels=2, blocks_down=(1, 1), blocks_up=(1,)
            ),
        )
        trained = [_fit(lambda net=net: net(volume).square().mean(), list(net.to(place).parameters())) for net in nets]
        scores = torch.randn(2, 3, 8, 8).to(place).requires_grad_()
        labels = torch.randint(0, 3, (2, 1, 8, 8)).to(place)
        made = [DiceCELoss(to_onehot_y=True, softmax=True), FocalLoss(to_onehot_y=True), TverskyLoss(to_onehot_y=True)]
        gradients = [torch.autograd.grad(loss(scores, labels), scores)[0] for loss in made]
        flat = UNet(2, 1, 2, (4, 8), (2,)).to(place).eval()
        with torch.no_grad():
            image = torch.randn(1, 1, 40, 40).to(place)
            windows = sliding_window_inference(image, (16, 16), 4, flat, mode="gaussian")
        return [*trained, *gradients, windows]

    _compare(program, device)
