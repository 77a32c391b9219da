"""How fast schemes are beside other people's code: processor time on one thread, as ratios within one run."""

from refattn.bench.run import bench

__all__ = ["bench"]
