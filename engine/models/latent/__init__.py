"""What the DeepSeek and GLM models share: latent attention, experts, drafts by a further layer."""
