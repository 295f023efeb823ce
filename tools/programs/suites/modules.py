# SPDX-License-Identifier: Apache-2.0
"""Features of torch.nn."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, parametrizations, parametrize, prune, rnn
from torch.optim import swa_utils

from tools.programs.given import count, randn, refused
from tools.programs.registry import Wrap, program


def _trained(model: nn.Module, *args: Any) -> Any:
    """The result and the gradients of a weighted sum of it."""
    out = model(*args)
    first = out[0] if isinstance(out, tuple) else out
    weights = torch.arange(first.numel()).cos().reshape(first.shape).to(first.device)
    (first * weights).sum().backward()
    return out, [None if p.grad is None else p.grad for p in model.parameters()]


def _linear(device: str, rows: int = 4, columns: int = 4) -> nn.Linear:
    return nn.Linear(columns, rows).to(device)


@program()
def parametrized(device: str) -> Any:
    class Symmetric(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.triu() + x.triu(1).t()

        def right_inverse(self, x: Tensor) -> Tensor:
            return x.triu()

    layer = _linear(device)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    layer.weight = count(device, 4, 4)
    with parametrize.cached():
        shared = layer.weight is layer.weight
    result = _trained(layer, randn(device, 2, 4))
    state = layer.state_dict()
    parametrize.remove_parametrizations(layer, "weight")
    return result, state, shared, layer.weight, repr(layer)


@program(terms=1000)
def orthogonal(device: str) -> Any:
    layer = parametrizations.orthogonal(_linear(device), orthogonal_map="cayley", use_trivialization=False)
    product = layer.weight @ layer.weight.t()
    return (product - torch.eye(4, device=device)).abs().max().item() < 1e-5


@program(terms=1000)
def weight_and_spectral_norm(device: str, wrap: Wrap) -> Any:
    one = parametrizations.weight_norm(_linear(device))
    other = parametrizations.spectral_norm(_linear("cpu")).to(device)  # which draws a vector
    x = randn(device, 3, 4)
    return _trained(wrap(one), x), _trained(wrap(other), x), one.state_dict()


@program()
def old_norms(device: str) -> Any:
    layer = nn.utils.weight_norm(_linear(device))
    return _trained(layer, randn(device, 3, 4)), nn.utils.remove_weight_norm(layer).state_dict()


@program()
def pruned(device: str) -> Any:
    layer = _linear(device, 5, 4)
    prune.l1_unstructured(layer, "weight", amount=0.3)
    prune.ln_structured(layer, "weight", amount=1, n=2, dim=0)
    prune.custom_from_mask(layer, "bias", torch.tensor([1, 0, 1, 1, 0], device=device))
    result = _trained(layer, randn(device, 2, 4))
    state = layer.state_dict()
    prune.remove(layer, "weight")
    prune.global_unstructured([(layer, "weight")], prune.L1Unstructured, amount=2)
    return result, state, prune.is_pruned(layer), layer.weight


@program()
def lazy(device: str) -> Any:
    model = nn.Sequential(nn.LazyConv2d(3, 2), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2)).to(device)
    before = repr(model)
    told = refused(lambda: model[0].weight.shape), refused(lambda: list(model[0].weight))
    x = randn(device, 2, 2, 4, 4)
    out = model(x)
    return before, told, repr(model), out.shape, out.dtype, [p.device for p in model.parameters()]


@program()
def averaged(device: str) -> Any:
    model = _linear(device)
    swa, ema = (
        swa_utils.AveragedModel(model),
        swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)),
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = swa_utils.SWALR(optimizer, 0.05, anneal_epochs=2)
    for _ in range(3):
        optimizer.zero_grad()
        _trained(model, randn(device, 3, 4))
        optimizer.step()
        swa.update_parameters(model)
        ema.update_parameters(model)
        scheduler.step()
    return swa.state_dict(), ema.state_dict()


@program()
def averaged_batch_norm(device: str) -> Any:
    model = nn.Sequential(_linear(device), nn.BatchNorm1d(4).to(device))
    swa_utils.update_bn([randn("cpu", 6, 4), randn("cpu", 6, 4)], model, device=torch.device(device))
    return model[1].running_mean, model[1].running_var, model[1].num_batches_tracked


@program()
def packed_sequences(device: str) -> Any:
    sequences = [randn(device, n, 3) for n in (2, 5, 3)]
    padded = rnn.pad_sequence(sequences, batch_first=True, padding_value=-1.0)
    packed = rnn.pack_padded_sequence(padded, torch.tensor([2, 5, 3]), batch_first=True, enforce_sorted=False)
    back = rnn.pad_packed_sequence(packed, batch_first=True, total_length=6)
    other = rnn.pack_sequence(sequences, enforce_sorted=False)
    return (
        packed,
        back,
        other,
        rnn.unpad_sequence(padded, torch.tensor([2, 5, 3]), batch_first=True),
        packed.to("cpu"),
        refused(lambda: rnn.pack_padded_sequence(padded, torch.tensor([2, 5, 3]), batch_first=True)),
        refused(lambda: rnn.pack_padded_sequence(padded, torch.tensor([2, 0, 3]), True, False)),
    )


@program(terms=1000)
def recurrent(device: str, wrap: Wrap) -> Any:
    torch.manual_seed(3)
    x = randn(device, 5, 2, 3)
    found = []
    for kind in (nn.RNN, nn.LSTM, nn.GRU):
        model = kind(3, 4, num_layers=2, bidirectional=True).to(device)
        found.append(_trained(wrap(model), x))
    return found


@program(terms=1000)
def recurrent_of_packed(device: str) -> Any:
    packed = rnn.pack_sequence([randn(device, n, 3) for n in (5, 3, 2)])
    model = nn.LSTM(3, 4, proj_size=2).to(device)
    out, (h, c) = model(packed)
    out.data.sum().backward()
    return out, h, c, [p.grad for p in model.parameters()]


@program()
def recurrent_refuses(device: str) -> Any:
    model = nn.GRU(3, 4).to(device)
    return (
        refused(lambda: model(randn(device, 5, 2, 7))),
        refused(lambda: model(randn(device, 3))),
        refused(lambda: model(randn(device, 5, 2, 3), randn(device, 1, 3, 4))),
        refused(lambda: nn.LSTM(3, 4, proj_size=4)),
    )


@program(terms=1000)
def cells(device: str) -> Any:
    x, h = randn(device, 2, 3), randn(device, 2, 4)
    return (
        _trained(nn.GRUCell(3, 4).to(device), x, h),
        _trained(nn.RNNCell(3, 4, nonlinearity="relu").to(device), x, h),
        _trained(nn.LSTMCell(3, 4).to(device), x, (h, h)),
    )


@program(terms=1000)
def attention_module(device: str, wrap: Wrap) -> Any:
    torch.manual_seed(4)
    model = nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.0).to(device)
    x = randn(device, 2, 5, 8)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2], device=device)
    causal = nn.Transformer.generate_square_subsequent_mask(5, device=device)
    call = wrap(model)
    return (
        call(x, x, x),
        call(x, x, x, need_weights=False),
        call(x, x, x, key_padding_mask=padding, average_attn_weights=False),
        call(x, x, x, attn_mask=causal, is_causal=True, need_weights=False),
        call(x[0], x[0], x[0]),
    )


@program()
def attention_module_refuses(device: str) -> Any:
    model = nn.MultiheadAttention(8, 2).to(device)
    x = randn(device, 5, 2, 8)
    return (
        refused(lambda: model(x[0, 0], x, x)),
        refused(lambda: model(x, x[:, :1], x)),
        refused(lambda: model(x[..., :4], x, x)),
        refused(lambda: model(x, x, x, attn_mask=torch.zeros(3, 3, device=device))),
        refused(lambda: nn.MultiheadAttention(7, 2)),
        refused(lambda: model(x, x, x, is_causal=True)),
    )


@program(terms=2000)
def encoder_fast_path(device: str) -> Any:
    torch.manual_seed(5)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2).to(device).eval()
    x = randn(device, 2, 5, 8)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2], device=device)
    with torch.no_grad():
        fast = model(x, src_key_padding_mask=padding), model(x)
    return fast, model.train()(x, src_key_padding_mask=padding)


@program(terms=4000)
def transformer(device: str) -> Any:
    torch.manual_seed(5)
    model = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True, norm_first=True).to(device)
    return _trained(model, randn(device, 2, 5, 8), randn(device, 2, 3, 8))


@program()
def embeddings(device: str) -> Any:
    torch.manual_seed(6)
    places = torch.tensor([[1, 4, 1], [0, 2, 4]], device=device)
    normed = nn.Embedding(5, 3, max_norm=1.0).to(device)
    padded = nn.Embedding(5, 3, padding_idx=4, scale_grad_by_freq=True).to(device)
    return (
        _trained(normed, places),
        normed.weight,
        _trained(padded, places),
        nn.Embedding.from_pretrained(count(device, 3, 2))(places[0, :1]),
        refused(lambda: padded(places.float())),
        refused(lambda: padded(torch.tensor([9], device=device)).sum().item())[:10],
    )


@program()
def bags(device: str) -> Any:
    torch.manual_seed(6)
    places, offsets = torch.tensor([1, 4, 1, 0, 2], device=device), torch.tensor([0, 2, 2], device=device)
    found = []
    for mode in ("sum", "mean", "max"):
        bag = nn.EmbeddingBag(5, 3, mode=mode, padding_idx=0).to(device)
        found.append(_trained(bag, places, offsets))
    weights = randn(device, 5)
    return (
        found,
        F.embedding_bag(places, count(device, 5, 2), offsets, mode="sum", per_sample_weights=weights),
        refused(lambda: F.embedding_bag(places, count(device, 5, 2))),
    )


@program()
def losses(device: str, wrap: Wrap) -> Any:
    x, y = randn(device, 4, 3, grad=True), randn(device, 4, 3)
    target = torch.tensor([0, 2, 1, -100], device=device)
    sign = torch.tensor([1.0, -1, 1, -1], device=device)
    weights = torch.tensor([0.5, 2.0, 1.0], device=device)
    found = []

    def one(reduction: str) -> list[Tensor]:
        r = {"reduction": reduction}
        return [
            F.cross_entropy(x, target, weights, label_smoothing=0.1, **r),
            F.nll_loss(x.log_softmax(1), target, **r),
            F.mse_loss(x, y, **r),
            F.l1_loss(x, y, **r),
            F.smooth_l1_loss(x, y, beta=0.3, **r),
            F.huber_loss(x, y, delta=0.7, **r),
            F.kl_div(x.log_softmax(1), y.softmax(1), **r),
            F.binary_cross_entropy_with_logits(x, y.sigmoid(), weights, **r),
            F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), **r),
            F.poisson_nll_loss(x, y.abs(), full=True, **r),
            F.gaussian_nll_loss(x, y, y.abs() + 0.1, **r),
            F.hinge_embedding_loss(x, y.sign(), **r),
            F.soft_margin_loss(x, y.sign(), **r),
            F.cosine_embedding_loss(x, y, sign, **r),
            F.margin_ranking_loss(x[:, 0], y[:, 0], sign, **r),
            F.triplet_margin_loss(x, y, y.flip(0), **r),
            F.multi_margin_loss(x, target.clamp(min=0), **r),
            F.multilabel_soft_margin_loss(x, (y > 0).float(), **r),
        ]

    for reduction in ("none", "mean", "sum"):
        results = wrap(one)(reduction)
        found.append((results, torch.autograd.grad([r.sum() for r in results], x)))
    return found


@program()
def losses_refuse(device: str) -> Any:
    x = randn(device, 4, 3)
    target = torch.tensor([0, 2, 1, 0], device=device)
    return (
        refused(lambda: F.cross_entropy(x, target[:3])),
        refused(lambda: F.cross_entropy(x, target.float())),
        refused(lambda: F.nll_loss(x[None, None, None], target)),
        refused(lambda: F.binary_cross_entropy(x[:2].sigmoid(), x)),
        refused(lambda: F.cross_entropy(x, target, torch.ones(2, device=device))),
        refused(lambda: F.mse_loss(x, x, reduction="none of these")),
        refused(lambda: F.l1_loss(x, x[:, :2])),
        F.mse_loss(x, x[:1]),
        refused(lambda: F.ctc_loss(x, target, (1,), (1,))),
        refused(lambda: F.binary_cross_entropy(x * 9, x.sigmoid()).item()),
        F.cross_entropy(x[:0], target[:0]),
    )


@program(terms=1000)
def connectionist(device: str) -> Any:
    logits = randn(device, 6, 2, 4, grad=True)
    loss = F.ctc_loss(
        logits.log_softmax(2),
        torch.tensor([[1, 2], [3, 3]]).to(device),
        torch.tensor([6, 5]),
        torch.tensor([2, 2]),
        zero_infinity=True,
    )
    loss.backward()
    return loss, logits.grad


@program()
def hooks_of_modules(device: str) -> Any:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(device)
    seen: list[Any] = []
    model[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    model[1].register_forward_hook(lambda m, args, out: out + 1)
    model[0].register_full_backward_hook(lambda m, gi, go: seen.append((gi, go)))
    model[2].register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))
    model.register_forward_hook(lambda m, args, kwargs, out: seen.append(kwargs), with_kwargs=True)
    handle = nn.modules.module.register_module_forward_hook(lambda m, args, out: seen.append(type(m).__name__))
    result = _trained(model, randn(device, 2, 3))
    handle.remove()
    return result, seen


@program()
def state_of_modules(device: str) -> Any:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).to(device)
    model.register_buffer("seen", torch.zeros(2, device=device), persistent=False)
    model.register_state_dict_pre_hook(lambda m, prefix, keep: None)
    model._register_state_dict_hook(lambda m, state, prefix, meta: state.update(extra=torch.ones(1)))
    model.register_load_state_dict_post_hook(lambda m, keys: keys.unexpected_keys.clear())
    state = model.state_dict()
    told = model.load_state_dict({k: v.cpu() * 2 for k, v in state.items()})
    bad = dict(state, **{"0.weight": torch.ones(2, 2)})
    return (
        list(state),
        told.missing_keys,
        model.state_dict(),
        refused(lambda: model.load_state_dict(bad)),
        refused(lambda: model.load_state_dict({"0.weight": state["0.weight"]})),
        model.load_state_dict(state, assign=True).missing_keys,
    )


@program()
def moved_modules(device: str) -> Any:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    parameter = model[0].weight
    model.to(device)
    same = model[0].weight is parameter
    half = copy.deepcopy(model).half()
    model.to(torch.float64)
    back = model.cpu()
    wide = nn.Conv2d(3, 4, 3).to(device, memory_format=torch.channels_last)
    return (
        same,
        [p.dtype for p in half.state_dict().values()],
        back.state_dict(),
        wide.weight.is_contiguous(memory_format=torch.channels_last),
        refused(lambda: model.to(torch.int32)),
        wide.weight.stride(),
    )


@program()
def emptied_modules(device: str) -> Any:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    told = refused(lambda: model.to(device))
    empty = model.to_empty(device=device)
    for p in empty.parameters():
        nn.init.constant_(p, 0.5)
    empty[1].reset_running_stats()
    return told, empty(randn(device, 2, 3)), [p.is_meta for p in empty.parameters()]


@program(draws=True)
def initialised(device: str) -> Any:
    w = torch.empty(6, 6, device=device)
    i = nn.init
    for f in (i.xavier_normal_, i.kaiming_uniform_, i.trunc_normal_, i.sparse_):
        f(w, *([0.5] if f is i.sparse_ else []))
    return (
        i.orthogonal_(w),
        refused(lambda: i.xavier_normal_(w[0])),
        i.eye_(w),
        i.dirac_(torch.empty(2, 2, 3, device=device)),
        i.calculate_gain("tanh"),
    )


@program()
def clipped(device: str) -> Any:
    ps = [randn(device, 3, grad=True), randn(device, 2, 2, grad=True), randn(device, 1, grad=True)]
    for p in ps[:2]:
        p.grad = p.detach() * 3
    norm = clip_grad_norm_(ps, 1.0)
    clip_grad_value_(ps, 0.2)
    other = clip_grad_norm_(ps, 0.5, norm_type=float("inf"), foreach=False)
    ps[0].grad.fill_(float("nan"))
    return (
        norm,
        other,
        [p.grad for p in ps[1:]],
        refused(lambda: clip_grad_norm_(ps, 1.0, error_if_nonfinite=True)),
        nn.utils.get_total_norm([p.grad for p in ps[1:2]], 1.0),
        clip_grad_norm_([], 1.0),
    )


@program()
def parameters_as_vectors(device: str) -> Any:
    layer = _linear(device)
    flat = nn.utils.parameters_to_vector(layer.parameters())
    nn.utils.vector_to_parameters(flat * 2, layer.parameters())
    return (
        flat,
        layer.weight,
        list(nn.ParameterList([layer.weight, torch.ones(2, device=device)])),
        repr(nn.ParameterList([torch.ones(2)])),
        nn.ParameterDict({"a": layer.bias})["a"],
    )


@program()
def printed_modules(device: str) -> Any:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding="same"), nn.LSTM(3, 4), nn.ParameterDict({"w": torch.ones(2, 3, device=device)})
    ).to(device)
    print(model)
    print(nn.Parameter(count(device, 3)), nn.ParameterList([torch.ones(2, device=device)]))
    return [name for name, _ in model.named_parameters()]


@program()
def frozen_and_trained(device: str, wrap: Wrap) -> Any:
    torch.manual_seed(8)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(device)
    model[0].requires_grad_(False)
    model[1].eval()
    return _trained(wrap(model), randn(device, 5, 3)), [b for b in model.buffers()]


@program()
def images(device: str, wrap: Wrap) -> Any:
    x = randn(device, 1, 2, 5, 6, grad=True)

    def resized(x: Tensor) -> list[Tensor]:
        return [
            F.interpolate(x, scale_factor=1.5, mode="bilinear"),
            F.interpolate(x, (7, 3), mode="bicubic", align_corners=True),
            F.interpolate(x, (3, 3), mode="area"),
            F.interpolate(x, scale_factor=2, mode="nearest-exact"),
            F.pixel_shuffle(x.repeat(1, 2, 1, 1), 2),
            F.unfold(x, 2, stride=2),
            F.pad(x, (1, 2, 0, 1), "reflect"),
            F.pad(x, (-1, 1), value=3.0),
            F.adaptive_avg_pool2d(x, (2, 3)),
            F.grid_sample(
                x,
                F.affine_grid(torch.eye(2, 3).to(x.device)[None], [1, 2, 4, 4], align_corners=False),
                align_corners=False,
            ),
            F.local_response_norm(x, 2),
        ]

    results = wrap(resized)(x)
    return results, torch.autograd.grad([r.sum() for r in results], x)


@program()
def images_refused(device: str) -> Any:
    x = randn(device, 1, 2, 5, 6)
    return (
        refused(lambda: F.interpolate(x, size=3, scale_factor=2)),
        refused(lambda: F.interpolate(x, mode="linear", scale_factor=2)),
        refused(lambda: F.interpolate(x[0], (2, 2), mode="bilinear")),
        refused(lambda: F.pad(x, (9, 9), "reflect")),
        refused(lambda: F.conv2d(x, randn(device, 3, 5, 2, 2))),
        refused(lambda: F.conv2d(x, randn(device, 3, 2, 9, 9))),
        refused(lambda: F.max_pool2d(x, 3, padding=2)),
        refused(lambda: F.avg_pool2d(x, 9)),
        refused(lambda: F.pixel_shuffle(x, 3)),
        refused(lambda: F.grid_sample(x, x)),
        refused(lambda: F.batch_norm(x, None, None)),
        refused(lambda: F.batch_norm(x[:, :, :1, :1], None, None, training=True)),
        refused(lambda: F.group_norm(x, 3)),
        refused(lambda: F.layer_norm(x, (4,))),
        refused(lambda: F.instance_norm(x[:, :, :1, :1])),
        refused(lambda: F.fold(x, (4, 4), 2)),
        refused(lambda: F.conv2d(x, randn(device, 3, 2, 2, 2).double())),
        refused(lambda: F.linear(x, randn(device, 3, 7))),
        refused(lambda: F.one_hot(torch.tensor([-1], device=device)).cpu())[:12],
        refused(lambda: F.glu(x[..., :3])),
    )


@program()
def dropouts(device: str) -> Any:
    x = randn(device, 3, 4)
    return (
        F.dropout(x, 0.0),
        F.dropout(x, 1.0),
        F.dropout(x, 0.5, training=False),
        refused(lambda: F.dropout(x, 1.5)),
        nn.Dropout2d(0.0)(x),
        refused(lambda: F.dropout(x.long(), 0.5)),
    )
