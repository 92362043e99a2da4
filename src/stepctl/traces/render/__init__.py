"""From texts and conversations to tokens and labels: the tokenizer, chat templates in their sandbox, masks."""
