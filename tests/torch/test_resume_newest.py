"""State dicts and snapshots with the newest PyTorch, whose torch.load accepts only weights_only by default."""

import peers
import skips

peers.enter()

from test_snapshot import SnapshotTest  # noqa: E402
from test_state_dict import ModuleTest, OptimTest, RngTest  # noqa: E402

__all__ = ["SnapshotTest", "ModuleTest", "OptimTest", "RngTest"]

if __name__ == "__main__":
    skips.main()
