"""Operations that layers are made of, each with its hand-written backward."""
