"""The baselines that hold important weights: EWC, SI and RWalk, without and with stored samples."""
