"""Operations below the schemes: heads, who may look at whom, scores, and what layers are made of; with their vjps and costs."""
