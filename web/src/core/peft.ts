/* The two files of an adapter in a PEFT folder. */

export const PEFT_WEIGHTS = 'adapter_model.safetensors';
export const PEFT_CONFIG = 'adapter_config.json';
