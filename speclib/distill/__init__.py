"""Distil a small draft from a target: its own chats, a small Llama trained on them, measured, written as a folder."""
