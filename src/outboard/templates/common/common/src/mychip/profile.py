"""The device's public face: `torch.device("mychip")`, `torch.mychip`, `Tensor.mychip()`."""

import torch

from outboard.profiles import Profile

PROFILE = Profile(
    name="mychip",
    driver="mychip",  # its devices come first
    amp_dtypes=(torch.bfloat16, torch.float16),
)
