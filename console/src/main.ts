import { mount } from 'svelte'
import '../../src/postroad/http/tokens.css'
import './app.css'
import App from './App.svelte'
import { theme } from './theme.svelte'

theme.apply()
mount(App, { target: document.getElementById('app')! })
