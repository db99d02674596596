from typing import Any

import numpy as np
import torch


class ToTensor:
    def __call__(self, picture: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255
