"""DSPy: a signature that is answered by a conducted run.

pip install -r requirements-dspy.txt
DIRIGENT_BASE_URL=http://127.0.0.1:8000/v1 DIRIGENT_API_KEY=dg_… python dspy_program.py
"""

import os

import dspy


def main() -> None:
    model = os.environ.get("DIRIGENT_MODEL", "dirigent-ultra")
    # `openai/` tells DSPy which wire to speak; the rest is the model's name.
    dspy.configure(
        lm=dspy.LM(
            f"openai/{model}",
            api_base=os.environ["DIRIGENT_BASE_URL"],
            api_key=os.environ["DIRIGENT_API_KEY"],
            cache=False,
        )
    )
    greet = dspy.Predict("request -> greeting")
    print("greeting:", greet(request="Say hello.").greeting)


if __name__ == "__main__":
    main()
