"""DataFrame -> Plotly figure or HTML. No Streamlit, no SQL."""
