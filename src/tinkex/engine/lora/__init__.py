"""LoRA adapters: in memory, in batches of many adapters, and as PEFT folders."""
