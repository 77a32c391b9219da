"""Operations below the schemes: heads, who may look at whom, scores, and what layers are made of, each with its vjp and cost."""
