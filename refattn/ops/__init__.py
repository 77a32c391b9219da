"""Operations below the schemes: heads, visibility, scores, and what layers are made of, each with its vjp and cost."""
