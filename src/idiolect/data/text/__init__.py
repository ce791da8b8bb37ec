"""Texts as ids: what a text is divided into, and columns and lists of texts made into samples"""
