"""Writes what big_bird_test.cpp compares with: BigBird of transformers in training, by blocks: random blocks, outputs and gradients. Run:
python tests/models/make_big_bird_fixtures.py
"""
import json
import pathlib
import shutil

import numpy as np
import torch
import transformers as T
from safetensors.torch import save_file
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

HERE = pathlib.Path(__file__).parent / "fixtures" / "big_bird"
VOCAB = 40


def random_blocks(tokens, block_size, random, heads, positions, layer):
    """As BigBirdBlockSparseAttention draws them before it attends."""
    config = T.BigBirdConfig(hidden_size=8 * heads, num_attention_heads=heads, block_size=block_size, num_random_blocks=random,
                             max_position_embeddings=positions)
    attention = BigBirdBlockSparseAttention(config, seed=layer).train()
    np.random.seed(layer)
    if tokens in (1024, 3072, 4096):
        lists = [attention._bigbird_block_rand_mask(positions, positions, block_size, block_size, random, last_idx=1024)
                 [: tokens // block_size - 2] for _ in range(heads)]
    else:
        lengths, counts = attention._get_rand_attn_plan(tokens, block_size, random)
        lists = attention._bigbird_block_rand_mask_with_head(
            from_seq_length=tokens, to_seq_length=tokens, from_block_size=block_size, to_block_size=block_size, num_heads=heads,
            plan_from_length=lengths, plan_num_rand_blocks=counts)
    return np.stack(lists).tolist()


def write_plans():
    plans = []
    for sizes in ((1024, 64, 3, 2, 4096, 0), (3072, 64, 3, 1, 4096, 11), (4096, 64, 3, 2, 4096, 5), (4096, 32, 2, 1, 8192, 1), (1024, 16, 1, 1, 1024, 3),
                  (768, 64, 3, 3, 4096, 2), (2048, 64, 3, 2, 4096, 7), (48, 4, 2, 3, 64, 1), (40, 4, 1, 3, 44, 0), (24, 4, 0, 2, 44, 0)):
        plans.append(dict(zip(("tokens", "block_size", "random_blocks", "heads", "positions", "layer"), sizes), blocks=random_blocks(*sizes)))
    (HERE / "plans.json").write_text(json.dumps(plans, separators=(",", ":")) + "\n")


def projected(grad):
    """A matrix by columns of fixed weights, so that files stay small."""
    return grad if grad.dim() < 2 else grad @ torch.cos(torch.arange(grad.shape[1], dtype=grad.dtype))


def write_model(name, make, rows, length, **sizes):
    torch.manual_seed(7)
    config = T.BigBirdConfig(vocab_size=VOCAB, hidden_size=12, num_hidden_layers=3, num_attention_heads=3, intermediate_size=20, pad_token_id=0,
                             hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout=0.0, **sizes)
    net = make(config).train()
    with torch.no_grad():
        for p in net.parameters():  # away from zeros and ones, which would hide mistakes
            p.add_(torch.randn_like(p) * 0.3)
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    net.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    ids, mask = torch.randint(2, VOCAB, (rows, length)), torch.ones(rows, length, dtype=torch.long)
    if rows > 1:  # padding on the right, over whole blocks, and on the left
        mask[1, -11:], mask[2, :3] = 0, 0
        ids[mask == 0] = 0
    net = net.double()
    head = net(input_ids=ids, attention_mask=mask).logits
    real = mask.unsqueeze(2) if head.dim() == 3 else 1
    (head * real * torch.cos(torch.arange(head.numel())).view_as(head)).sum().backward()
    out = dict(ids=ids, mask=mask, head=head) | {"grad." + key: projected(p.grad) for key, p in net.named_parameters() if p.grad is not None}
    save_file({key: (value.float() if value.is_floating_point() else value).detach().contiguous() for key, value in out.items()}, folder / "outputs.st")


if __name__ == "__main__":
    T.logging.set_verbosity_error()
    torch.set_num_threads(1)
    HERE.mkdir(parents=True, exist_ok=True)
    write_plans()
    write_model("masked", T.BigBirdForMaskedLM, 3, 46, max_position_embeddings=48, block_size=4, num_random_blocks=2)
    write_model("sequence", T.BigBirdForSequenceClassification, 1, 1024, max_position_embeddings=1024, block_size=64, num_random_blocks=3)
