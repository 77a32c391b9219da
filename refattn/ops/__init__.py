"""Operations below the schemes: heads, who may look at whom, scores, and what layers are made of, each with vjp and cost."""
