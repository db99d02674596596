"""Augmentations: named by the neighbours, used by none of these tests."""

import torch

functional = torch.nn.functional


class Transform(torch.nn.Module):
    pass
