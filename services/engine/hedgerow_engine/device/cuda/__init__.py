"""The GPU: whole-model graphs captured while serving, one engine thread, answers awaited lazily.

`runtime` names what a card must offer (streams, events, pinned memory, capture); `driver` offers
it through torch.cuda, `rehearsal` on host tensors with a stream that runs when told, so that all
the ordering above it is tested without a card.
"""
