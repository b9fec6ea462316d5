"""Speech: Whisper (small, random weights) transcribes batches of audio, log-mel on the host by torch.stft."""
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

torch.manual_seed(0)
config = WhisperConfig(d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12,
                       decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072)
model = WhisperForConditionalGeneration(config).to("cuda").eval()
model.generation_config.suppress_tokens = None
model.generation_config.begin_suppress_tokens = None
filters = torch.rand(80, 201) * 0.01
window = torch.hann_window(400)


def log_mel(audio):
    spec = torch.stft(audio, 400, 160, window=window, return_complex=True)[..., :-1].abs() ** 2
    mel = torch.clamp(filters @ spec, min=1e-10).log10()
    return (torch.maximum(mel, mel.amax((1, 2), keepdim=True) - 8.0) + 4.0) / 4.0


for clip in range(4):
    audio = torch.randn(4, 480000) * 0.1
    features = log_mel(audio).to("cuda")
    with torch.no_grad():
        tokens = model.generate(features, max_new_tokens=48, min_new_tokens=48, do_sample=False)
    print(tokens.shape)
