import type { Schemas } from '../../api'

export type Run = Schemas['LoadTest']
