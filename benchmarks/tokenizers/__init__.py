"""The unigram encoder beside the `tokenizers` library, in one process, in turns."""
