"""Distributed training: DDP and FSDP, their collectives, and DTensors in traces."""
