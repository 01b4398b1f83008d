from unifews.propagation.distributed import propagate as propagate
from unifews.training.distributed import train as train
