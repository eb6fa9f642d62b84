"""The OpenAI endpoint: chat and text completions by the sampler that serves the Tinker protocol.

A request becomes a `SampleRequest` on an internal sampling session, goes the way of every other
sample (log, scheduler, engine), and its result becomes an answer in OpenAI's form.
"""
