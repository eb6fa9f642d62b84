"""The OpenAI endpoint: chat and text completions by the sampler that serves the Tinker protocol.

A request becomes a `SampleRequest` on an internal sampling session. It is logged, scheduled and run
like any other sample, and its result is returned in OpenAI's format.
"""
