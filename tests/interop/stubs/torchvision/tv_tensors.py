import torch

Image = torch.as_tensor
