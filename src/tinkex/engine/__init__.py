"""Compute: the interface every engine keeps, and the engines that keep it.

Importing this package loads no torch. Take the interface from `tinkex.engine.interface`, a process
of its own from `tinkex.engine.process.local.EngineProcess`, the in-process PyTorch engine from
`tinkex.engine.torch_engine`, and the engine without numerics from `tinkex.engine.null`.
"""
