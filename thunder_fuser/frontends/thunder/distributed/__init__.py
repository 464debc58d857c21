"""Distributed training: DDP and FSDP, their collectives, DTensors in traces."""
