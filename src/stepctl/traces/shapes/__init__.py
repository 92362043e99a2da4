"""From the columns of a row to the texts and conversations that it holds. Knows no tokenizer and no template."""
