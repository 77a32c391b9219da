"""Operations below the schemes: heads, who may look at whom, scores, softmax statistics."""
