"""A model that goes on learning: one file, new classes task by task, answers, drawings, proof of what was kept."""
