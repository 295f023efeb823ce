# SPDX-License-Identifier: Apache-2.0
"""Boxes of detectors: how far they overlap, how they are coded, and which are kept."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

_Corners = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def npu_iou(bboxes: torch.Tensor, gtboxes: torch.Tensor, mode: int = 0) -> torch.Tensor:
    """How far each box (row of ``gtboxes``) and each other (row of ``bboxes``) overlap: (true boxes, boxes).

    Args:
        mode: 0 for the intersection over the union, 1 over the area of the true box.
    """
    x0, y0, x1, y1 = (side[None, :] for side in bboxes.unbind(-1))
    return _overlap((x0, y0, x1, y1), _row(gtboxes), mode)


def npu_ptiou(bboxes: torch.Tensor, gtboxes: torch.Tensor, mode: int = 0) -> torch.Tensor:
    """:func:`npu_iou`."""
    return npu_iou(bboxes, gtboxes, mode)


def npu_giou(
    input: torch.Tensor, gtboxes: torch.Tensor, trans: bool = False, is_cross: bool = False, mode: int = 0
) -> torch.Tensor:
    """The overlap of pairs of boxes (4, pairs), less the share of their hull that is in neither: (pairs, 1).

    Args:
        trans: whether boxes are centres and sizes; if not, two corners.
        mode: see :func:`npu_iou`.

    Raises:
        NotImplementedError: for ``is_cross``, which compares each box with each.
    """

    def beside(ours: _Corners, theirs: _Corners, overlap: torch.Tensor) -> torch.Tensor:
        width, height = _hull(ours, theirs)
        hull = width * height
        joined = _area(ours) + _area(theirs) - _shared(ours, theirs)
        return overlap - (hull - joined) / hull

    return _compared("npu_giou", input, gtboxes, trans, is_cross, mode, beside)


def npu_diou(
    input: torch.Tensor, gtboxes: torch.Tensor, trans: bool = False, is_cross: bool = False, mode: int = 0
) -> torch.Tensor:
    """The overlap of pairs of boxes (4, pairs), less the squared distance of their centres over the hull's diagonal.

    Arguments and errors are those of :func:`npu_giou`.
    """

    def beside(ours: _Corners, theirs: _Corners, overlap: torch.Tensor) -> torch.Tensor:
        return overlap - _distance(ours, theirs)

    return _compared("npu_diou", input, gtboxes, trans, is_cross, mode, beside)


def npu_ciou(
    input: torch.Tensor,
    gtboxes: torch.Tensor,
    trans: bool = False,
    is_cross: bool = True,
    mode: int = 0,
    atan_sub_flag: bool = False,
) -> torch.Tensor:
    """:func:`npu_diou`, less how far the ratios of widths and heights differ.

    Arguments and errors are those of :func:`npu_giou`. ``atan_sub_flag`` is for the extension's own backward pass.
    """

    def beside(ours: _Corners, theirs: _Corners, overlap: torch.Tensor) -> torch.Tensor:
        angles = [torch.atan((x1 - x0) / (y1 - y0)) for x0, y0, x1, y1 in (theirs, ours)]
        ratio = 4 / torch.pi**2 * (angles[0] - angles[1]).square()
        weight = (ratio / (1 - overlap + ratio)).detach()
        return overlap - _distance(ours, theirs) - weight * ratio

    return _compared("npu_ciou", input, gtboxes, trans, is_cross, mode, beside)


def npu_bounding_box_encode(
    anchor_box: torch.Tensor,
    ground_truth_box: torch.Tensor,
    means0: float,
    means1: float,
    means2: float,
    means3: float,
    stds0: float,
    stds1: float,
    stds2: float,
    stds3: float,
) -> torch.Tensor:
    """How true boxes differ from anchors, in centres and in logarithms of sizes, less the means, over the deviations.

    Boxes are pixels from corner to corner, so that their size is the difference of corners plus one.
    """
    (ax, ay, aw, ah), (gx, gy, gw, gh) = (_centres(*box.unbind(-1)) for box in (anchor_box, ground_truth_box))
    deltas = torch.stack(((gx - ax) / aw, (gy - ay) / ah, (gw / aw).abs().log(), (gh / ah).abs().log()), -1)
    means, stds = (deltas.new_tensor(four) for four in ((means0, means1, means2, means3), (stds0, stds1, stds2, stds3)))
    return (deltas - means) / stds


def npu_nms_v4(
    input: torch.Tensor,
    scores: torch.Tensor,
    max_output_size: int,
    iou_threshold: torch.Tensor,
    scores_threshold: torch.Tensor,
    pad_to_max_output_size: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which boxes (boxes, 4) remain, from the highest score on, without those that overlap a better one too far.

    Returns:
        Their numbers in int32, at most ``max_output_size``, with zeros behind them if ``pad_to_max_output_size``; and
        how many there are, in int32.
    """
    order = scores.argsort(dim=0, descending=True, stable=True)
    kept = order[_kept(input[order], iou_threshold) & (scores[order] > scores_threshold)][: int(max_output_size)]
    count = torch.tensor(len(kept), dtype=torch.int32, device=input.device)
    if pad_to_max_output_size:
        kept = torch.cat((kept, kept.new_zeros(int(max_output_size) - len(kept))))
    return kept.int(), count


def npu_batch_nms(
    input: torch.Tensor,
    scores: torch.Tensor,
    score_threshold: float,
    iou_threshold: float,
    max_size_per_class: int,
    max_total_size: int,
    change_coordinate_frame: bool = False,
    transpose_box: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The best boxes of each image, once those that overlap a better one of their class too far are left out.

    Args:
        input: (images, boxes, 1 or classes, 4).
        scores: (images, boxes, classes).

    Returns:
        Boxes (images, max_total_size, 4), scores and classes (images, max_total_size), with zeros behind them; and how
        many there are (images,), in int32.

    Raises:
        NotImplementedError: for ``change_coordinate_frame`` and ``transpose_box``.
    """
    if change_coordinate_frame or transpose_box:
        raise NotImplementedError("npu_batch_nms: change_coordinate_frame and transpose_box are not there")
    results = []
    for boxes, shares in zip(input.expand(-1, -1, scores.shape[-1], -1), scores, strict=True):
        found = []
        for number in range(scores.shape[-1]):
            ours, worth = boxes[:, number], shares[:, number]
            order = worth.argsort(dim=0, descending=True, stable=True)
            kept = order[_kept(ours[order], iou_threshold) & (worth[order] > score_threshold)][:max_size_per_class]
            classes = torch.full_like(worth[kept], number)
            found.append(torch.cat((ours[kept], worth[kept][:, None], classes[:, None]), 1))
        joined = torch.cat(found)
        joined = joined[joined[:, 4].argsort(dim=0, descending=True, stable=True)][:max_total_size]
        results.append((F.pad(joined, [0, 0, 0, max_total_size - len(joined)]), len(joined)))
    rows = torch.stack([row for row, _ in results])
    counts = torch.tensor([count for _, count in results], dtype=torch.int32, device=input.device)
    return rows[..., :4], rows[..., 4], rows[..., 5], counts


def npu_nms_with_mask(input: torch.Tensor, iou_threshold: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Which boxes remain, for boxes in the order of their scores.

    Args:
        input: (boxes, 8): two corners, a score, and three numbers that are not used.

    Returns:
        Corners and scores (boxes, 5), the boxes' numbers in int32, and in uint8 whether each remains.
    """
    numbers = torch.arange(len(input), dtype=torch.int32, device=input.device)
    return input[:, :5].clone(), numbers, _kept(input[:, :4], iou_threshold).to(torch.uint8)


def _kept(boxes: torch.Tensor, threshold: float | torch.Tensor) -> torch.Tensor:
    """Whether each of the boxes, in the order of their scores, overlaps no kept one before it by more than a threshold.

    Each round settles at least one more box: a box falls to a kept one before it, and stays where all before it that
    overlap it have fallen.
    """
    overlaps = (npu_iou(boxes, boxes) > threshold).tril(-1)
    kept = torch.ones(len(boxes), dtype=torch.bool, device=boxes.device)
    while True:
        again = ~(overlaps & kept).any(1)
        if torch.equal(again, kept):
            return kept
        kept = again


def _row(boxes: torch.Tensor) -> _Corners:
    x0, y0, x1, y1 = (side[:, None] for side in boxes.unbind(-1))
    return x0, y0, x1, y1


def _centres(
    x0: torch.Tensor, y0: torch.Tensor, x1: torch.Tensor, y1: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    return (x0 + x1) / 2, (y0 + y1) / 2, x1 - x0 + 1, y1 - y0 + 1


def _corners(boxes: torch.Tensor, centred: bool) -> _Corners:
    """Two corners of boxes (4, boxes) that are corners already, or centres and sizes."""
    a, b, c, d = boxes
    return (a - c / 2, b - d / 2, a + c / 2, b + d / 2) if centred else (a, b, c, d)


def _area(box: _Corners) -> torch.Tensor:
    x0, y0, x1, y1 = box
    return (x1 - x0) * (y1 - y0)


def _shared(ours: _Corners, theirs: _Corners) -> torch.Tensor:
    """The area of intersections."""
    width = torch.minimum(ours[2], theirs[2]) - torch.maximum(ours[0], theirs[0])
    height = torch.minimum(ours[3], theirs[3]) - torch.maximum(ours[1], theirs[1])
    return width.clamp(min=0) * height.clamp(min=0)


def _hull(ours: _Corners, theirs: _Corners) -> tuple[torch.Tensor, torch.Tensor]:
    """Width and height of the smallest box around both."""
    width = torch.maximum(ours[2], theirs[2]) - torch.minimum(ours[0], theirs[0])
    height = torch.maximum(ours[3], theirs[3]) - torch.minimum(ours[1], theirs[1])
    return width, height


def _distance(ours: _Corners, theirs: _Corners) -> torch.Tensor:
    """The squared distance of centres, over the squared diagonal of the hull."""
    x = (theirs[0] + theirs[2] - ours[0] - ours[2]) / 2
    y = (theirs[1] + theirs[3] - ours[1] - ours[3]) / 2
    width, height = _hull(ours, theirs)
    return (x.square() + y.square()) / (width.square() + height.square())


def _overlap(ours: _Corners, theirs: _Corners, mode: int) -> torch.Tensor:
    shared = _shared(ours, theirs)
    return shared / (_area(theirs) if mode == 1 else _area(ours) + _area(theirs) - shared)


def _compared(
    operator: str,
    boxes: torch.Tensor,
    true_boxes: torch.Tensor,
    centred: bool,
    each_with_each: bool,
    mode: int,
    formula: Callable[[_Corners, _Corners, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    if each_with_each:
        raise NotImplementedError(f"{operator}: is_cross=True is not there")
    ours, theirs = _corners(boxes, centred), _corners(true_boxes, centred)
    return formula(ours, theirs, _overlap(ours, theirs, mode))[:, None]
