"""Wrong answers to the judged exercise of lesson 13, each with a part of what its judge has to say."""

import torch
import torch.nn.functional as F

from book.exercises.chapter_13 import attention


def _over_the_row(q, k, v, lengths):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _of_everything(q, k, v, lengths):
    return F.scaled_dot_product_attention(q, k, v)


def _not_causal(q, k, v, lengths):
    return attention(q, k, v, lengths, is_causal=False)


def _backwards(q, k, v, lengths):
    return attention(q, k, v, lengths[::-1])


def _masked(q, k, v, lengths):
    document = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    mask = (document[:, None] == document) & torch.ones(len(document), len(document)).tril().bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _a_list(q, k, v, lengths):
    return list(attention(q, k, v, lengths).split(list(lengths), dim=1))


def _one_document(q, k, v, lengths):
    return F.scaled_dot_product_attention(*(x[:, : lengths[0]] for x in (q, k, v)), is_causal=True)


def _no_gradient(q, k, v, lengths):
    with torch.no_grad():
        return attention(q, k, v, lengths)


def _in_half(q, k, v, lengths):
    return attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), lengths)


def _elsewhere(q, k, v, lengths):
    return attention(q, k, v, lengths).to("meta")


def _not_divided(q, k, v, lengths):
    return attention(q * 8**0.5, k, v, lengths)


def _a_dictionary(q, k, v, lengths):
    return {"output": attention(q, k, v, lengths)}


WRONG = {
    "13.2": (
        (3.5, "3.5 is a float; the answer is a function"),
        (_a_list, "You returned a list; the output is one tensor"),
        (_a_dictionary, "You returned a dict; the output is one tensor"),
        (_elsewhere, "The output is on meta, and the queries are on cpu"),
        (_one_document, "Your output has the shape (2, 5, 8)"),
        (_in_half, "Your output is torch.bfloat16, the queries are torch.float32"),
        (_over_the_row, "Documents read those before them"),
        (_of_everything, "Every token reads the whole row"),
        (_not_causal, "a token reads those after it"),
        (_backwards, "The documents are cut in the wrong places"),
        (_not_divided, "Are the scores divided by the root of the width?"),
        (_masked, "you made a tensor of 100 × 100"),
        (_no_gradient, "no gradient can come from it"),
    )
}
