"""Dynamic Generative Memory as a library: learn digits two classes at a time, then look at what is remembered."""

import torch

from engram import DGM, ClassStream, build, evaluate, load_dataset

dataset = load_dataset("digits")
learner = build("dgmw", dataset, settings={"gan.steps": 5, "classifier.epochs": 1})  # just to see it work
for task in ClassStream(dataset, classes_per_task=2, order_seed=7):
    learner.learn(task)
    print(f"{len(task.seen)} classes: A = {evaluate(learner, dataset, task.seen).accuracy:.3f}")

assert isinstance(learner, DGM)
print("classes whose images changed:", learner.retention())
print("replayed:", tuple(learner.sample([0, 9], 5, generator=torch.Generator().manual_seed(0)).shape))
